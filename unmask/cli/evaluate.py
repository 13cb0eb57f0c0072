"""`unmask eval`: benchmarks from their samples to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.eval_progress import showing_progress
from unmask.cli.options import DecodingOptions, LengthOptions, ModelOptions, SamplerOptions, build_config
from unmask.cli.runs import load_model

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evals.summary import Summary
    from unmask.evals.task import Sample, Task
    from unmask.text.config import GenerationConfig
    from unmask.types import Sampler

RUNS = Path("runs")
COLUMNS = 3  # tasks side by side

Names = Annotated[
    list[str], typer.Argument(metavar="TASK...", help="Benchmarks, such as gsm8k or mini-math.")
]


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is asked, and what is kept."""

    protocol: Annotated[
        str | None,
        typer.Option("--protocol", show_default="the task's first", help="How it is asked and scored."),
    ] = None
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Local data instead of the hub's.")
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first so many samples.")] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            show_default="runs/MODEL/SAMPLER",
            help="Where runs are kept, a folder per task; a run that is there goes on.",
        ),
    ] = None
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Samples decoded together.")] = 8
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per task.")] = False


@dataclass(frozen=True, kw_only=True)
class TaskLengthOptions:
    """Where a text ends; the task says it unless the user does."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            "-n",
            show_default="the task's",
            help="Tokens to decode.",
            rich_help_panel="Text",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="TEXT",
            show_default="the task's",
            help="End the text before this string; as often as needed.",
            rich_help_panel="Text",
        ),
    ] = None

    def within(self, task: Task) -> LengthOptions:
        """These lengths, and the task's own where none is given."""
        length = task.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens
        return LengthOptions(max_new_tokens=length, stop=self.stop or list(task.stop))


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Who decodes, if it is not this process."""

    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS|local",
            help="Decode on a Ray cluster; local starts one here.",
            rich_help_panel="Cluster",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            show_default="one per GPU, or per CPU where there is none",
            help="Replicas of the model.",
            rich_help_panel="Cluster",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.ray is None:
            raise ValueError("--workers needs a cluster; add --ray local or --ray ADDRESS")


@dataclass(frozen=True)
class Asked:
    """A task that is ready to be run."""

    task: Task
    samples: Sequence[Sample]
    config: GenerationConfig
    out: Path


def evaluate(
    names: Names,
    model: ModelOptions,
    choice: SamplerOptions,
    tasks: TaskOptions,
    decoding: DecodingOptions,
    length: TaskLengthOptions,
    cluster: RayOptions,
) -> None:
    """Run benchmarks; the same command again goes on where it was stopped."""
    sampler = choice.build()
    out = tasks.out or RUNS / _short(model.model) / choice.sampler
    asked = [_ask(name, tasks, decoding, length, out) for name in dict.fromkeys(names)]
    summaries = []
    with _evaluator(model, cluster) as run:
        for one in asked:
            summaries.append(_told(partial(run, batch_size=tasks.batch_size), one, sampler))
            if tasks.json:
                _print_json(summaries[-1])
    if not tasks.json:
        _print_tables(summaries, f"{choice.title} on {_short(model.model)}")
        typer.secho(f"kept in {out}", dim=True, err=True)


def _short(model: str) -> str:
    """The last part of a hub id or a path."""
    return Path(model).name.partition("@")[0] or "model"


def _ask(
    name: str, options: TaskOptions, decoding: DecodingOptions, length: TaskLengthOptions, out: Path
) -> Asked:
    """The task of this name; wrong settings and data are refused before a model is loaded."""
    from unmask.evals import get_task
    from unmask.evals.run import load_samples

    task = get_task(name, options.protocol)
    config = build_config(decoding, length.within(task))
    return Asked(task, load_samples(task, options.data, options.limit), config, out / task.name)


@contextmanager
def _evaluator(model: ModelOptions, cluster: RayOptions) -> Iterator[Callable[..., Summary]]:
    """`evaluate_samples` with the model that the options name, here or on a cluster."""
    if cluster.ray is None:
        from unmask.evals.run import evaluate_samples

        yield partial(evaluate_samples, load_model(model))
        return
    from unmask.evals.cluster import connect
    from unmask.models import load

    # a worker has a working folder of its own
    source = str(Path(model.model).resolve()) if Path(model.model).exists() else model.model
    replica = partial(load, source, device=model.device, dtype=model.dtype)
    with connect(cluster.ray, replica, workers=cluster.workers, gpu=model.device != "cpu") as connected:
        yield connected.evaluate_samples


def _told(run: Callable[..., Summary], asked: Asked, sampler: Sampler) -> Summary:
    """Run a task; an interrupt says what is kept."""
    with showing_progress(asked.task.name) as watch:
        try:
            return run(asked.task, asked.samples, sampler, asked.config, out=asked.out, progress=watch)
        except KeyboardInterrupt:
            last = watch.last
            done = "before its first sample" if last is None else f"after {last.done} of {last.total} samples"
            message = f"{asked.task.name} was interrupted {done}; the same command goes on in {asked.out}"
            typer.echo(message, err=True)
            raise


def _print_json(summary: Summary) -> None:
    import json

    typer.echo(json.dumps(asdict(summary), ensure_ascii=False, allow_nan=False))


def _print_tables(summaries: Sequence[Summary], what: str) -> None:
    """A column per task: many numbers fit on a narrow terminal only one below the other."""
    from rich.console import Console

    for first in range(0, len(summaries), COLUMNS):
        Console().print(_table(summaries[first : first + COLUMNS], what))


def _table(summaries: Sequence[Summary], what: str) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption=escape(f"{what}, {_origin(summaries[0])}"))
    table.add_column("", style="dim", no_wrap=True)
    for summary in summaries:
        table.add_column(f"{summary.task}\n{summary.protocol}", justify="right")
    columns = [_numbers(summary) for summary in summaries]
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, "") for column in columns))
    return table


def _numbers(summary: Summary) -> dict[str, str]:
    """The numbers of a summary, by what they are called."""
    low, high = summary.interval
    return {
        "samples": str(summary.samples),
        "accuracy, %": f"{100 * summary.accuracy:.1f}",
        "95 % interval": f"{100 * low:.1f} - {100 * high:.1f}",
        **{f"  {name}, %": f"{100 * accuracy:.1f}" for name, accuracy in summary.also.items()},
        "steps, mean": f"{summary.mean_steps:.1f}",
        "steps, median": f"{summary.median_steps:g}",
        "forwards, mean": f"{summary.mean_forwards:.1f}",
        "tokens per forward": f"{summary.tokens_per_forward:.2f}",
        "forced steps, %": f"{100 * summary.forced_share:.1f}",
        "seconds per sample, p50": f"{summary.p50_seconds:.3g}",
        "seconds per sample, p95": f"{summary.p95_seconds:.3g}",
        "wall-clock, s": f"{summary.wall_seconds:.1f}",
        "peak memory, GB": f"{summary.peak_memory / 1e9:.2f}",
    }


def _origin(summary: Summary) -> str:
    """Where the numbers come from."""
    configuration, environment = summary.configuration, summary.environment
    versions = configuration["versions"]
    return (
        f"{configuration['model']['device']}, unmask {versions['unmask']}, torch {versions['torch']}, "
        f"python {environment['python']}, {environment['date'][:10]}"
    )
