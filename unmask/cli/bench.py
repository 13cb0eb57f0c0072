"""`unmask bench`: time the library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.command import command
from unmask.errors import at_least

if TYPE_CHECKING:
    from unmask.bench.gpu import GpuSettings

bench = typer.Typer(no_args_is_help=True, help="Time the library on this machine.")

Families = Annotated[str, typer.Option("--families", "--family", help="llada, dream or both.")]


@dataclass(frozen=True, kw_only=True)
class SmallOptions:
    """How much to run, and where to write the results."""

    small: Annotated[
        bool, typer.Option("--small", help="Run a small version, on the CPU unless --device is given.")
    ] = False
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results and figures.")] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(SmallOptions):
    """The device and the time limit."""

    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.")] = None
    minutes: Annotated[
        float, typer.Option("--minutes", help="Time limit; parts that do not fit are skipped.")
    ] = 20.0

    def __post_init__(self) -> None:
        at_least("minutes", self.minutes, 0)


@dataclass(frozen=True, kw_only=True)
class GpuOptions(RunOptions):
    """The parts of `unmask bench gpu` to run."""

    families: Families = "llada,dream"
    ways: Annotated[str, typer.Option("--ways", help="Which of these to time, each against the first.")] = (
        "eager,recorded,compiled"
    )
    batches: Annotated[
        str | None, typer.Option("--batches", "--rows", help="Any of 1,8,32; all by default.")
    ] = None
    caches: Annotated[str, typer.Option("--caches", help="Which of these to time; `none` always is.")] = (
        "none,prefix,dual"
    )
    samplers: Annotated[
        str, typer.Option("--samplers", help="Sampler names, or all for one of each kind.")
    ] = "base,klass,less"
    dtypes: Annotated[
        str | None,
        typer.Option(
            "--dtypes",
            help="Any of bf16,fp8,int8,int4: only time a step in each, against the least time it needs.",
        ),
    ] = None

    def settings(self) -> GpuSettings:
        """Return the settings of the run."""
        from unmask.bench.every_sampler import kinds
        from unmask.bench.gpu import GpuSettings

        return GpuSettings(
            families=_names(self.families),
            ways=_names(self.ways),
            batches=None if self.batches is None else _names(self.batches),
            caches=_names(self.caches),
            samplers=kinds() if self.samplers == "all" else _names(self.samplers),
            device=self.device,
            small=self.small,
            minutes=self.minutes,
        )


def gpu(options: GpuOptions) -> None:
    """Time a step at full size: the forward and the sampler."""
    from unmask.bench.gpu import run_gpu
    from unmask.bench.targets import run_targets

    settings = options.settings()
    if options.dtypes is None:
        fail_on_problems(run_gpu(settings, out=options.out, log=typer.echo))
    else:
        fail_on_problems(run_targets(settings, _names(options.dtypes), out=options.out, log=typer.echo))


def growth(
    options: RunOptions,
    families: Families = "llada,dream",
    ways: Annotated[str, typer.Option("--ways", help="eager, recorded or compiled.")] = "compiled",
) -> None:
    """Time a step for several sizes of the canvas and of the batch."""
    from unmask.bench.growth import run_growth

    fail_on_problems(run_growth(families=_names(families), way=ways, log=typer.echo, **asdict(options)))


def same(
    options: RunOptions,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Shipped models or checkpoint folders.")
    ] = "mini-llada,mini-dream",
    ways: Annotated[
        str, typer.Option("--ways", help="Which of these to check.")
    ] = "kernels,recorded,compiled,prefix,dual,recorded-dual",
    dtypes: Annotated[
        str, typer.Option("--dtypes", help="Any of these, and of fp8,int8,int4.")
    ] = "float32,bfloat16",
    samplers: Annotated[
        str, typer.Option("--samplers", help="Sampler names, or all for one of each kind.")
    ] = "base,threshold,klass,less",
) -> None:
    """Check that every fast path writes the plain path's tokens."""
    from unmask.bench.every_sampler import kinds
    from unmask.bench.same import run_same

    chosen = asdict(options) | {"ways": _names(ways), "dtypes": _names(dtypes)}
    chosen["samplers"] = kinds() if samplers == "all" else _names(samplers)
    fail_on_problems(run_same(models=_names(model), log=typer.echo, **chosen))


def quantized(
    options: RunOptions,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Shipped models or checkpoint folders.")
    ] = "mini-llada,mini-dream",
    dtypes: Annotated[str, typer.Option("--dtypes", help="Which of these to run.")] = "fp8,int8,int4",
    samplers: Annotated[
        str, typer.Option("--samplers", help="Sampler names.")
    ] = "base,less,threshold,first-mask",
    items: Annotated[
        int | None, typer.Option("--items", min=1, help="Items per task; all by default.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Rows per batch; by default 64 on a GPU, else 4."),
    ] = None,
) -> None:
    """Answer the mini tasks in fp8, int8 and int4 beside plain weights."""
    from unmask.bench.quantized import run_quantized

    chosen = asdict(options) | {"dtypes": _names(dtypes), "samplers": _names(samplers)}
    chosen |= {"items": items, "batch_size": batch_size}
    fail_on_problems(run_quantized(models=_names(model), log=typer.echo, **chosen))


def cpu(
    options: SmallOptions,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A shipped model or a checkpoint folder.")
    ] = "mini-llada",
) -> None:
    """Time `less` beside `base` with a small model."""
    from unmask.bench.cpu import run_cpu

    fail_on_problems(run_cpu(model=model, log=typer.echo, **asdict(options)))


def samplers(
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Turns of each sampler.")] = 5,
) -> None:
    """Time a decision, in passes over the logits, and a step of every sampler beside `threshold`."""
    from unmask.bench.every_sampler import run_every_sampler
    from unmask.bench.samplers import run_samplers
    from unmask.models.checkpoint.load import pick_device

    run_samplers(device, repeat, log=typer.echo)
    run_every_sampler(pick_device(device), repeat, log=typer.echo)


for function in (gpu, growth, same, quantized, cpu, samplers):
    bench.command()(command(function))


def fail_on_problems(content: dict[str, Any]) -> None:
    """Exit with code 1 if a result is wrong or missing."""
    if content["problems"]:
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
