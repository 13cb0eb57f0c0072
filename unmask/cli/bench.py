"""`unmask bench`: timed runs."""

from __future__ import annotations

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
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Small = Annotated[bool, typer.Option("--small", help="The same in miniature, on the CPU unless told.")]
Minutes = Annotated[float, typer.Option("--minutes", help="What does not fit is left out.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results and figures.")]


def gpu(
    families: Families = "llada,dream",
    ways: Annotated[
        str, typer.Option("--ways", help="Some of these; the first is the measure.")
    ] = "eager,recorded,compiled",
    reference: References = None,
    device: Device = None,
    small: Small = False,
    minutes: Minutes = 20.0,
    out: Out = None,
) -> None:
    """A step at full size: the forward, and what the sampler adds."""
    from unmask.bench.run_gpu import run_gpu

    _end(
        run_gpu(
            families=_names(families),
            ways=_names(ways),
            references=reference or (),
            device=device,
            small=small,
            minutes=minutes,
            out=out,
            say=typer.echo,
        )
    )


def growth(
    families: Families = "llada,dream",
    ways: Annotated[str, typer.Option("--ways", help="eager, recorded or compiled.")] = "compiled",
    device: Device = None,
    small: Small = False,
    minutes: Minutes = 20.0,
    out: Out = None,
) -> None:
    """A step against the canvas and the batch."""
    from unmask.bench.growth import run_growth

    _end(
        run_growth(
            families=_names(families),
            way=ways,
            device=device,
            small=small,
            minutes=minutes,
            out=out,
            say=typer.echo,
        )
    )


def same(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Shipped models or checkpoint folders.")
    ] = "mini-llada,mini-dream",
    ways: Annotated[
        str, typer.Option("--ways", help="Some of these.")
    ] = "kernels,recorded,compiled,prefix,dual,recorded-dual",
    device: Device = None,
    small: Small = False,
    minutes: Minutes = 20.0,
    out: Out = None,
) -> None:
    """Whether every fast path writes the plain one's tokens."""
    from unmask.bench.same import run_same

    _end(
        run_same(
            models=_names(model),
            ways=_names(ways),
            device=device,
            small=small,
            minutes=minutes,
            out=out,
            say=typer.echo,
        )
    )


def cpu(
    model: Annotated[
        str, typer.Option("--model", "-m", help="A shipped model or a checkpoint folder.")
    ] = "mini-llada",
    small: Small = False,
    out: Out = None,
) -> None:
    """`less` beside `base` with a small model."""
    from unmask.bench.cpu import run_cpu

    _end(run_cpu(model=model, small=small, out=out, say=typer.echo))


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
