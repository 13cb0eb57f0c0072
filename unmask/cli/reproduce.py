"""`unmask reproduce`: build the tables and figures of the paper from stored runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import complete
from unmask.cli.evaluate import RayOptions
from unmask.cli.isolation import UnsafeCode, check_isolation
from unmask.cli.options import (
    DEFAULT_MODEL,
    SHOWN,
    DataFolder,
    LoadOptions,
    ModelOptions,
    build_config,
    config_options,
)
from unmask.cli.output import print_table
from unmask.cli.runs import compile_now, load_model, worker_loader
from unmask.cli.tasks import print_experiments

if TYPE_CHECKING:
    from rich.console import Console

    from unmask.evals.batches import EvalBatch
    from unmask.evals.cluster import Cluster
    from unmask.evals.decode import Decoded
    from unmask.evals.run import EvalJob, Progress
    from unmask.experiments.experiment import Experiment
    from unmask.experiments.forecast import Forecast
    from unmask.experiments.lab import Lab, Watch
    from unmask.experiments.report import Report, Table
    from unmask.experiments.runs import Outcome, Run
    from unmask.models.trunk import Trunk
    from unmask.text.config import GenerationConfig

PAGE = "results.md"
LIMIT = "Samples in total, divided among the tasks, at least one of each (`unmask eval`: per task)."
PADDING = 3  # spaces beside a cell of a printed table, with the one between columns
EDGE = 1

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="headline, single-signal, pareto ..., or all. --list explains them.",
        autocompletion=complete.experiments,
    ),
]


@config_options(
    "Decoding",
    ("max_new_tokens", "block_length", "cache", "refresh_every"),
    {**SHOWN, "max_new_tokens": "the task's own"},
)
class ReproduceDecoding:
    """Settings of every run, unless an experiment compares them."""


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(LoadOptions):
    """Models, tasks and settings of the runs, and where the results go."""

    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            show_default=DEFAULT_MODEL,
            help="A model, as in `unmask eval`; may be repeated.",
            autocompletion=complete.models,
        ),
    ] = None
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            "--task",
            metavar="A,B,...",
            show_default="all of the model's",
            help="Only these tasks.",
            autocompletion=complete.task_list,
        ),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", min=1, help=LIMIT)] = None
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Records, tables and figures.")] = Path(
        "results"
    )
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE",
            show_default="OUT/results.md",
            help="The results page. By default only `all` writes one.",
        ),
    ] = None
    data: DataFolder = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            "-b",
            min=1,
            show_default="64 on a GPU, 4 on a CPU",
            help="Samples decoded together.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, show_default="torch's own", help="CPU threads of the model."),
    ] = None
    records_only: Annotated[
        bool, typer.Option("--records-only", help="Build from the stored records alone; decode nothing.")
    ] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate how long the missing runs will take.")
    ] = False
    pack: Annotated[
        bool, typer.Option("--pack", help="Move new records into OUT/records.tar.xz at the end.")
    ] = False
    unsafe_code: UnsafeCode = False
    max_loss: Annotated[
        float, typer.Option("--max-loss", help="calibrate: largest loss against Base, in points.")
    ] = 1.0
    max_steps: Annotated[
        float | None,
        typer.Option("--max-steps", help="calibrate: most steps per sample, instead of --max-loss."),
    ] = None

    grid: Annotated[
        Path | None,
        typer.Option(
            "--grid",
            metavar="FOLDER",
            help="evidence: the folder of `unmask train --grid`.",
        ),
    ] = None
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Models run at a time, each in its own process.")
    ] = 1

    def lab(self, decoding: ReproduceDecoding, cluster: Cluster | None) -> Lab:
        """Return the lab with these settings; it loads models through the CLI."""
        from unmask.experiments.lab import Lab, LabSettings

        config = build_config(decoding)
        names = [item.name for item in fields(LabSettings)]
        values = {name: getattr(self if hasattr(self, name) else config, name) for name in names}
        values["models"] = tuple(self.models or ([] if self.grid else [DEFAULT_MODEL]))
        values["tasks"] = tuple(self.tasks.split(",")) if self.tasks else ()

        def decode(name: str, job: EvalJob, batches: Sequence[EvalBatch]) -> Iterator[Decoded]:
            assert cluster is not None
            return replace(cluster, load=worker_loader(self.model_options(name))).decode(job, batches)

        return Lab(
            LabSettings(**values),
            load=lambda lab, name: self._load(lab, name, config),
            decode=None if cluster is None else decode,
        )

    def model_options(self, name: str) -> ModelOptions:
        """Return the options that load one of the models."""
        return ModelOptions(model=name, device=self.device, dtype=self.dtype, compile=self.compile)

    def _load(self, lab: Lab, name: str, config: GenerationConfig) -> Trunk:
        """Load a model; if it is to be compiled, compile it at the lab's batch size."""
        from unmask.fast.warm_up import warm_up
        from unmask.text.generate import DEFAULT_SAMPLER

        model = load_model(self.model_options(name))
        rows = (lab.batch_size(model),)
        compile_now(model, name, lambda: warm_up(model, DEFAULT_SAMPLER, config, rows=rows))
        return model


def _list(wanted: bool) -> None:
    if wanted:
        print_experiments()
        raise typer.Exit


List = Annotated[
    bool, typer.Option("--list", callback=_list, is_eager=True, help="List the experiments and exit.")
]


def reproduce(
    names: Names,
    options: ReproduceOptions,
    decoding: ReproduceDecoding,
    cluster: RayOptions,
    show_list: List = False,
) -> None:
    """Build the paper's tables and figures. The same command resumes a stopped run."""
    from unmask.experiments import EXPERIMENTS, NEEDS_GRID, get_experiment
    from unmask.experiments.drawing import check_matplotlib

    every = [name for name in EXPERIMENTS if options.grid or name not in NEEDS_GRID]
    chosen = dict.fromkeys(every if "all" in names else names)
    experiments = [get_experiment(name) for name in chosen]
    if not options.dry_run:
        check_matplotlib()  # now, not after hours of decoding
    _set_threads(options.threads)
    if options.unsafe_code:  # the workers of a cluster must know when they start
        from unmask.sandbox import allow_unsafe_code

        allow_unsafe_code()
    with _connected(cluster, options) as workers:
        lab = options.lab(decoding, workers)
        if not options.records_only:
            _prepare(lab, experiments, options, workers)
        if options.jobs > 1 and not (options.dry_run or options.records_only):
            from unmask.experiments.parallel import make_runs

            with _resumable(" ".join(chosen), lab):
                make_runs(lab.settings, lab.models, list(chosen), options.jobs, partial(typer.echo, err=True))
        if not options.dry_run:
            _make(lab, experiments, options, every="all" in names)


@contextmanager
def _connected(cluster: RayOptions, options: ReproduceOptions) -> Iterator[Cluster | None]:
    """Yield the cluster that the options name, or None."""
    if cluster.ray is None:
        yield None
        return
    from unmask.evals.cluster import connect

    first = options.model_options((options.models or [DEFAULT_MODEL])[0])
    gpu = options.device != "cpu"
    with connect(cluster.ray, worker_loader(first), workers=cluster.workers, gpu=gpu) as workers:
        yield workers


def _prepare(
    lab: Lab, experiments: Sequence[Experiment], options: ReproduceOptions, workers: Cluster | None
) -> None:
    """Check the isolation of programs, and estimate how long the missing runs will take.

    With several jobs there is no estimate: they would have to wait while the models are timed one by one.
    """
    from unmask.evals import get_task
    from unmask.experiments.forecast import forecast

    tasks = {name for model in lab.models for name in lab.tasks(model)}
    check_isolation(map(get_task, tasks), unsafe=options.unsafe_code)
    if options.jobs > 1 and not options.dry_run:
        return
    lines = _estimate(forecast(lab, experiments), 1 if workers is None else workers.workers)
    for line in lines:
        typer.secho(line, dim=not options.dry_run, err=not options.dry_run)


def _estimate(cost: Forecast, workers: int) -> list[str]:
    """Describe an estimate, and the numbers that it is based on."""
    if not cost.runs:
        return ["estimate: no runs are missing"]
    pace = "" if workers == 1 else f" on {workers} workers"
    total = f"{cost.samplers} samplers, {cost.samples:,} texts, {cost.forwards:,.0f} forwards of one text"
    stored, others = cost.stored, cost.runs - cost.stored
    chosen = ", runs that an experiment chooses from these results" if cost.chosen_later else ""
    lines = [
        f"estimate: about {_duration(cost.seconds / workers)}{pace} for {cost.runs} runs ({total})",
        f"  forwards: from stored runs for {stored}, from the paper for {others}; your model may differ",
        f"  not counted: loading, compiling, scoring, timing experiments, step-level measurements{chosen}",
    ]
    for one in cost.timed:
        size = f"{one.rows} x {one.columns}"
        lines.append(f"  {one.model}: a forward of {size} tokens took {one.seconds:.2g} s on {one.device}")
    return lines


def _duration(seconds: float) -> str:
    """Return a time in one unit."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} seconds"


def _make(lab: Lab, experiments: Sequence[Experiment], options: ReproduceOptions, *, every: bool) -> None:
    """Make the runs, and write tables and figures; write the page too if `every` or if it is named."""
    from unmask.experiments.lab import Missing
    from unmask.experiments.page import figures_folder, write_page

    page, tables = options.page or options.out / PAGE, options.out / "reports"
    every = every or options.page is not None
    figures = figures_folder(page) if every else tables
    reports, outcomes, missing = {}, {}, dict[str, str]()
    for experiment in experiments:
        try:
            reports[experiment], finished = _run(lab, experiment)
        except Missing as error:
            missing[experiment.name] = str(error)
            continue
        outcomes.update(finished)
        _show(experiment, reports[experiment], tables, figures)
    _report_missing(missing, any_built=bool(reports))
    if every:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_page(page, lab, reports, list(outcomes.values()), absent=list(missing))
        typer.secho(f"results page: {page}", dim=True, err=True)
    if options.pack:
        moved = lab.store.pack()
        typer.secho(f"{moved} new records packed into {lab.store.archive}", dim=True, err=True)


def _set_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def _report_missing(missing: Mapping[str, str], *, any_built: bool) -> None:
    """Say which experiments lack records; raise if none was built."""
    lines = [f"{name} is not complete: {reason}" for name, reason in missing.items()]
    if lines and not any_built:
        raise ValueError(lines[0])
    for line in lines:
        typer.secho(line, fg=typer.colors.YELLOW, err=True)


def _run(lab: Lab, experiment: Experiment) -> tuple[Report, dict[Run, Outcome]]:
    """Make an experiment's runs and its report."""
    with _resumable(experiment.name, lab), _progress(experiment.name) as watch:
        return experiment.make(lab, watch)


@contextmanager
def _resumable(name: str, lab: Lab) -> Iterator[None]:
    """Say how to resume after an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"{name} was interrupted; the same command resumes it in {lab.settings.out}", err=True)
        raise


@contextmanager
def _progress(name: str) -> Iterator[Watch]:
    """Show a bar of runs and one of samples on a terminal, else a line per run."""
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
    """Prints a line on standard error at the start of every run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started: set[Run] = set()

    def __call__(self, done: int, total: int, run: Run, state: Progress | None) -> None:
        if run not in self._started:
            self._started.add(run)
            label = f"{run.model} {run.task} {type(run.sampler).__name__}"
            typer.echo(f"{self._name}: {done} of {total} runs done, now {label}", err=True)


def _show(experiment: Experiment, report: Report, tables: Path, figures: Path) -> None:
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
    files = write(report, tables, figures)
    names = ", ".join(file.name for file in files) or "nothing"
    folders = " and ".join(dict.fromkeys(str(file.parent) for file in files)) or tables
    typer.secho(f"{experiment.name}: {names} in {folders}", dim=True, err=True)


def _print_table(console: Console, table: Table) -> None:
    """Print a table; one wider than the terminal continues below, with its first column again."""
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    for number, columns in enumerate(_pieces(table, console.width)):
        drawn = Drawn(title=table.title if number == 0 else None, box=box.SIMPLE_HEAD)
        for place in columns:
            drawn.add_column(table.header[place], justify="left" if place == 0 else "right")
        for row in table.rows:
            drawn.add_row(*(Text(row[place]) for place in columns))
        print_table(drawn)


def _pieces(table: Table, width: int) -> list[list[int]]:
    """Group the columns to fit the width; each group begins with the first column."""
    sizes = [
        PADDING + max(len(word) for word in (*name.split(), *cells, ""))
        for name, *cells in zip(table.header, *table.rows, strict=True)
    ]
    pieces: list[list[int]] = [[0]]
    for place in range(1, len(sizes)):
        if len(pieces[-1]) > 1 and EDGE + sum(sizes[column] for column in (*pieces[-1], place)) > width:
            pieces.append([0])
        pieces[-1].append(place)
    return pieces
