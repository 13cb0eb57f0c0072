"""`unmask bench`: timed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

What = Annotated[
    str, typer.Argument(help="gpu: a step at full size; samplers: the cost of a decision, in units.")
]
Families = Annotated[str, typer.Option("--families", help="gpu: llada, dream or both.")]
Ways = Annotated[
    str, typer.Option("--ways", help="gpu: eager, recorded, compiled; the first is the measure.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Small = Annotated[bool, typer.Option("--small", help="gpu: the same in miniature, on the CPU.")]
Minutes = Annotated[float, typer.Option("--minutes", help="gpu: what does not fit is left out.")]
Out = Annotated[Path | None, typer.Option("--out", help="gpu: folder for gpu.json and gpu.png.")]
Repeat = Annotated[int, typer.Option("--repeat", help="samplers: turns of each.")]


def bench(
    what: What,
    families: Families = "llada,dream",
    ways: Ways = "eager,recorded,compiled",
    device: Device = None,
    small: Small = False,
    minutes: Minutes = 20.0,
    out: Out = None,
    repeat: Repeat = 5,
) -> None:
    """Time the library on this machine."""
    from unmask.bench.run_gpu import run_gpu
    from unmask.bench.samplers import run_samplers
    from unmask.checks import one_of

    one_of("what", what, ("gpu", "samplers"))
    if what == "samplers":
        run_samplers(device or "cpu", repeat)
        return
    content = run_gpu(
        families=_names(families),
        ways=_names(ways),
        device=device or "cuda",
        small=small,
        minutes=minutes,
        out=out,
        say=typer.echo,
    )
    if content["problems"]:
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
