"""`unmask reproduce`: the tables and figures of the paper, from runs that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.options import DEFAULT_MODEL, parse_block_length

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.evals.run import Progress
    from unmask.experiments.experiment import Experiment
    from unmask.experiments.lab import Lab, Watch
    from unmask.experiments.report import Report, Table
    from unmask.experiments.runs import Outcome, Run

PAGE = "results.md"
LIMIT = "Samples of each category (math, code, knowledge), shared by its tasks."
WIDE = 7  # columns; a wider table is turned on a terminal

Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="headline, single-signal, pareto ...; all: every one of them."),
]


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """What is run, on what, and where it is kept."""

    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            show_default=DEFAULT_MODEL,
            help="A model, as `unmask eval` takes it; repeatable.",
        ),
    ] = None
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks", metavar="A,B,...", show_default="all of the model's", help="Only these tasks."
        ),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", min=1, help=LIMIT)] = None
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Records, tables and figures.")] = Path(
        "results"
    )
    page: Annotated[
        Path | None,
        typer.Option("--page", metavar="FILE", show_default="OUT/results.md", help="The page of `all`."),
    ] = None
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Local data instead of the hub's.")
    ] = None
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")] = "auto"
    dtype: Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")] = "auto"
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", "-b", min=1, show_default="64 on a GPU, 1 on a CPU", help="Samples together."
        ),
    ] = None
    block_length: Annotated[
        str,
        typer.Option("--block-length", metavar="N|auto|none", help="Columns decoded together, as elsewhere."),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, show_default="the cores that are idle", help="CPU threads of the model."
        ),
    ] = None
    records_only: Annotated[
        bool, typer.Option("--records-only", help="Use what is kept; load no model and decode nothing.")
    ] = False
    max_loss: Annotated[float, typer.Option("--max-loss", help="calibrate: points below Base at most.")] = 1.0
    max_steps: Annotated[
        float | None, typer.Option("--max-steps", help="calibrate: steps per sample at most, instead.")
    ] = None

    def lab(self) -> Lab:
        """The lab that these options mean."""
        from unmask.experiments.lab import Lab, Settings

        return Lab(
            Settings(
                models=tuple(self.models or [DEFAULT_MODEL]),
                out=self.out,
                tasks=tuple(self.tasks.split(",")) if self.tasks else (),
                limit=self.limit,
                device=self.device,
                dtype=self.dtype,
                batch_size=self.batch_size,
                data=self.data,
                block_length=parse_block_length(self.block_length),
                records_only=self.records_only,
                max_loss=self.max_loss,
                max_steps=self.max_steps,
            )
        )


def reproduce(names: Names, options: ReproduceOptions) -> None:
    """Make the paper's tables and figures; the same command again goes on where it was stopped."""
    from unmask.experiments import EXPERIMENTS, get_experiment
    from unmask.experiments.page import write_page

    wanted = list(dict.fromkeys(EXPERIMENTS if "all" in names else names))
    experiments = [get_experiment(name) for name in wanted]
    lab = options.lab()
    _set_threads(options.threads)
    reports, outcomes = {}, {}
    for experiment in experiments:
        reports[experiment], made = _made(lab, experiment)
        outcomes.update(made)
        _tell(experiment, reports[experiment], options.out)
    if "all" in names:
        page = options.page or options.out / PAGE
        page.parent.mkdir(parents=True, exist_ok=True)
        write_page(page, lab, reports, list(outcomes.values()))
        typer.secho(f"results page: {page}", dim=True, err=True)


def _set_threads(threads: int | None) -> None:
    """Take idle cores alone: threads that wait for each other on a busy machine take many times as long."""
    import os

    import torch

    idle = (os.cpu_count() or 1) - round(os.getloadavg()[0])
    torch.set_num_threads(threads or max(1, idle))


def _made(lab: Lab, experiment: Experiment) -> tuple[Report, dict[Run, Outcome]]:
    """Make an experiment's runs and its report; an interrupt says what is kept."""
    with _progress(experiment.name) as watch:
        try:
            outcomes = lab.results(experiment.runs(lab), watch)
            return experiment.build(lab, outcomes), outcomes
        except KeyboardInterrupt:
            typer.echo(
                f"{experiment.name} was interrupted; the same command goes on in {lab.settings.out}", err=True
            )
            raise


@contextmanager
def _progress(name: str) -> Iterator[Watch]:
    """A bar of runs and one of the samples of this run, on a terminal; else a line per run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(name)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        runs, samples = bar.add_task(name, total=None), bar.add_task("", total=None)

        def watch(done: int, total: int, run: Run, state: Progress | None) -> None:
            bar.update(runs, completed=done, total=total)
            if state is not None:
                label = f"{run.model} {run.task} {type(run.sampler).__name__}"
                bar.update(samples, description=label, completed=state.done, total=state.total)

        yield watch


class _Lines:
    """A line on standard error for every run that is begun."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: Run | None = None

    def __call__(self, done: int, total: int, run: Run, state: Progress | None) -> None:
        if run != self._last:
            self._last = run
            typer.echo(
                f"{self._name}: run {done + 1}/{total}, {run.model} {run.task} {type(run.sampler).__name__}",
                err=True,
            )


def _tell(experiment: Experiment, report: Report, out: Path) -> None:
    """Print a report, and write its tables and figures."""
    from rich.console import Console

    from unmask.experiments.report import write

    console = Console()
    for table in report.tables:
        _print_table(console, table)
    for finding in report.findings:
        console.print(f"- {finding.statement}: {finding.verdict} ({finding.numbers})", markup=False)
    for note in report.notes:
        console.print(note, markup=False)
    files = write(report, experiment.name, out / "reports")
    typer.secho(f"{experiment.name}: {_names(files)} in {out / 'reports'}", dim=True, err=True)


def _names(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files) or "nothing"


def _print_table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    header, rows = table.header, list(table.rows)
    if len(header) > WIDE > len(rows):
        header, *rows = zip(header, *rows, strict=True)
    drawn = Drawn(title=table.title, box=box.SIMPLE_HEAD)
    for place, name in enumerate(header):
        drawn.add_column(name, justify="left" if place == 0 else "right")
    for row in rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)
