"""`unmask eval`: run benchmarks and print a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import complete
from unmask.cli.eval_progress import Watcher, showing_progress
from unmask.cli.isolation import UnsafeCode, check_isolation
from unmask.cli.options import (
    ConstraintOptions,
    DataFolder,
    DecodingOptions,
    ModelOptions,
    SamplerOptions,
    build_config,
    config_options,
)
from unmask.cli.output import print_table
from unmask.cli.runs import compile_now, load_model, say_dimly, worker_loader
from unmask.plugins import short_name

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evals.manifest import Manifest
    from unmask.evals.summary import Summary
    from unmask.evals.task import Sample, Task
    from unmask.models.trunk import Trunk
    from unmask.text.config import GenerationConfig
    from unmask.types import Sampler

RUNS = Path("runs")
COLUMNS = 3  # tasks side by side

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="TASK...",
        help="Benchmarks, such as gsm8k or mini-math; `unmask tasks` lists them.",
        autocompletion=complete.tasks,
    ),
]


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which samples, and where the records go."""

    protocol: Annotated[
        str | None,
        typer.Option("--protocol", show_default="the task's first", help="Prompts and scoring."),
    ] = None
    data: DataFolder = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", help="Only the first N samples; run again with a larger N to add more."
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            show_default="runs/MODEL/TASK/SAMPLER-HASH",
            help="Folder of the runs, one folder per task; an existing run is resumed.",
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an existing run and start over.")] = (
        False
    )
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Samples decoded together.")] = 8
    unsafe_code: UnsafeCode = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per task.")] = False


TASKS_OWN = {"max_new_tokens": "the task's", "stop": "the task's"}


@config_options("Text", TASKS_OWN, TASKS_OWN)
class TaskLengthOptions:
    """Where a text ends; the task decides unless the user does."""


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Workers on a Ray cluster instead of this process."""

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


@dataclass
class TaskRun:
    """A task with its samples and settings, and its folder as soon as that is known."""

    task: Task
    samples: Sequence[Sample]
    config: GenerationConfig
    limit: int | None
    folder: Path

    def name_folder(self, sampler: str, manifest: Manifest) -> Path:
        """Add the name of the sampler and a hash of all settings to the folder."""
        from unmask.evals.manifest import hash_settings

        self.folder /= f"{Path(sampler).name}-{hash_settings(manifest.configuration)}"
        return self.folder


def evaluate(
    names: Names,
    model: ModelOptions,
    choice: SamplerOptions,
    tasks: TaskOptions,
    decoding: DecodingOptions,
    length: TaskLengthOptions,
    constraint: ConstraintOptions,
    cluster: RayOptions,
) -> None:
    """Run benchmarks. The same command resumes a stopped run; a larger --limit extends it."""
    sampler = choice.build()
    out = tasks.out or RUNS / _short(model.model)
    groups = decoding, length, constraint
    runs = [_task_run(name, tasks, *groups, out) for name in dict.fromkeys(names)]
    here = [] if cluster.ray else [one.task for one in runs]  # workers check themselves
    check_isolation(here, unsafe=tasks.unsafe_code)
    summaries = []
    with _evaluator(model, cluster, runs[0], sampler, tasks.batch_size) as evaluate_samples:
        for one in runs:
            named = one.folder if tasks.out else partial(one.name_folder, choice.name)
            settings = {"out": named, "batch_size": tasks.batch_size, "overwrite": tasks.overwrite}
            summaries.append(_run(partial(evaluate_samples, **settings), one, sampler))
            if cluster.ray and one.task.runs_programs:
                say_dimly(f"generated programs were isolated by {summaries[-1].environment['isolation']}")
            if tasks.json:
                _print_json(summaries[-1])
    if not tasks.json:
        _print_tables(summaries, f"{choice.title} on {_short(model.model)}")
        say_dimly(f"kept in {', '.join(str(one.folder) for one in runs)}")


def _short(model: str) -> str:
    """Return the last part of a hub id or a path."""
    return short_name(Path(model).name.removeprefix("hf:")).partition("@")[0] or "model"


def _task_run(
    name: str,
    options: TaskOptions,
    decoding: DecodingOptions,
    length: TaskLengthOptions,
    constraint: ConstraintOptions,
    out: Path,
) -> TaskRun:
    """Find a task and load its samples, so that errors in settings and data come before a model is loaded."""
    from unmask.evals import get_task
    from unmask.evals.run import check_limit, load_samples

    task = get_task(name, options.protocol)
    check_limit(options.limit)
    usual = {"max_new_tokens": task.max_new_tokens, "stop": task.stop}
    config = build_config(decoding, length, **usual, constraint=constraint.build())
    return TaskRun(task, load_samples(task, options.data), config, options.limit, out / task.name)


@contextmanager
def _evaluator(
    model: ModelOptions, cluster: RayOptions, first: TaskRun, sampler: Sampler, batch_size: int
) -> Iterator[Callable[..., Summary]]:
    """Yield `evaluate_samples` with the model that the options name, here or on a cluster."""
    if cluster.ray is None:
        from unmask.evals.run import evaluate_samples

        loaded = load_model(model)
        compile_now(loaded, model.model, lambda: _warm_up(loaded, first, sampler, batch_size))
        yield partial(evaluate_samples, loaded)
        return
    from unmask.evals.cluster import connect

    if model.compile:
        say_dimly(f"each worker compiles {model.model} with its first batch")
    gpu = model.device != "cpu"
    with connect(cluster.ray, worker_loader(model), workers=cluster.workers, gpu=gpu) as connected:
        yield connected.evaluate_samples


def _warm_up(model: Trunk, run: TaskRun, sampler: Sampler, batch_size: int) -> float:
    """Compile at the shape of a full batch with the prompt of the first sample."""
    from unmask.fast.warm_up import warm_up
    from unmask.text.prompts import encode_prompts

    new_tokens = run.config.new_tokens(model.info)
    [ids] = encode_prompts(model, [run.samples[0].prompt], new_tokens)
    rows = max(1, min(batch_size, len(run.samples[: run.limit])))
    return warm_up(model, sampler, run.config, rows=(rows,), prompt_tokens=len(ids))


def _run(evaluate_samples: Callable[..., Summary], run: TaskRun, sampler: Sampler) -> Summary:
    """Run a task; after an interrupt, clear the bar and say how to resume."""
    watch: Watcher | None = None
    try:
        with showing_progress(run.task.name) as watch:
            return evaluate_samples(
                run.task, run.samples, sampler, run.config, limit=run.limit, progress=watch
            )
    except KeyboardInterrupt:
        last = None if watch is None else watch.last
        done = "before its first sample" if last is None else f"after {last.done} of {last.total} samples"
        typer.echo(
            f"{run.task.name} was interrupted {done}; the same command resumes it in {run.folder}", err=True
        )
        raise


def _print_json(summary: Summary) -> None:
    import json

    typer.echo(json.dumps(asdict(summary), ensure_ascii=False, allow_nan=False))


def _print_tables(summaries: Sequence[Summary], what: str) -> None:
    """Print a column per task, so that the numbers fit on a narrow terminal."""
    for first in range(0, len(summaries), COLUMNS):
        print_table(_table(summaries[first : first + COLUMNS], what))


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
    """Return the numbers of a summary by their labels."""
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
    """Return the device, the versions and the date of a run."""
    configuration, environment = summary.configuration, summary.environment
    versions = configuration["versions"]
    compiled = ", compiled" if configuration["model"].get("compile") else ""
    return (
        f"{configuration['model']['device']}{compiled}, unmask {versions['unmask']}, "
        f"torch {versions['torch']}, python {environment['python']}, {environment['date'][:10]}"
    )
