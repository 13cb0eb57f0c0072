"""`unmask bench`: timed runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.command import command

bench = typer.Typer(no_args_is_help=True, help="Time the library on this machine.")

Families = Annotated[str, typer.Option("--families", "--family", help="llada, dream or both.")]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="PATH.py:FUNCTION, or 'PATH.py:FUNCTION NAME=VALUE', a sampler of other code to time too.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SmallOptions:
    """How much is run, and where the results go."""

    small: Annotated[bool, typer.Option("--small", help="The same in miniature, on the CPU unless told.")] = (
        False
    )
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the results and figures.")] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions(SmallOptions):
    """The same, on which device, and for how long."""

    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.")] = None
    minutes: Annotated[float, typer.Option("--minutes", help="What does not fit is left out.")] = 20.0


def gpu(
    options: RunOptions,
    families: Families = "llada,dream",
    ways: Annotated[
        str, typer.Option("--ways", help="Some of these; the first is the measure.")
    ] = "eager,recorded,compiled",
    batches: Annotated[
        str | None, typer.Option("--batches", help="Some of 1,8,32; as a rule all of them.")
    ] = None,
    caches: Annotated[
        str, typer.Option("--caches", help="Some of these; none is always timed.")
    ] = "none,prefix,dual",
    samplers: Annotated[str, typer.Option("--samplers", help="Some of these.")] = "base,klass,less",
    reference: References = None,
) -> None:
    """A step at full size: the forward, and what the sampler adds."""
    from unmask.bench.run_gpu import run_gpu

    _end(
        run_gpu(
            families=_names(families),
            ways=_names(ways),
            batches=None if batches is None else _names(batches),
            caches=_names(caches),
            samplers=_names(samplers),
            references=reference or (),
            say=typer.echo,
            **asdict(options),
        )
    )


def growth(
    options: RunOptions,
    families: Families = "llada,dream",
    ways: Annotated[str, typer.Option("--ways", help="eager, recorded or compiled.")] = "compiled",
) -> None:
    """A step against the canvas and the batch."""
    from unmask.bench.growth import run_growth

    _end(run_growth(families=_names(families), way=ways, say=typer.echo, **asdict(options)))


def same(
    options: RunOptions,
    model: Annotated[
        str, typer.Option("--model", "-m", help="Shipped models or checkpoint folders.")
    ] = "mini-llada,mini-dream",
    ways: Annotated[
        str, typer.Option("--ways", help="Some of these.")
    ] = "kernels,recorded,compiled,prefix,dual,recorded-dual",
) -> None:
    """Whether every fast path writes the plain one's tokens."""
    from unmask.bench.same import run_same

    _end(run_same(models=_names(model), ways=_names(ways), say=typer.echo, **asdict(options)))


def cpu(
    options: SmallOptions,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A shipped model or a checkpoint folder.")
    ] = "mini-llada",
) -> None:
    """`less` beside `base` with a small model."""
    from unmask.bench.cpu import run_cpu

    _end(run_cpu(model=model, say=typer.echo, **asdict(options)))


def samplers(
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Turns of each.")] = 5,
) -> None:
    """The cost of a decision, in passes over the logits."""
    from unmask.bench.samplers import run_samplers

    run_samplers(device, repeat)


for function in (gpu, growth, same, cpu, samplers):
    bench.command()(command(function))


def _end(content: dict[str, Any]) -> None:
    """End with code 1 if anything was wrong or missing."""
    if content["problems"]:
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
