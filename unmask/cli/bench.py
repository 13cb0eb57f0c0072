"""`unmask bench`: timed runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

WHAT = {
    "gpu": "a step at full size",
    "growth": "a step against the canvas and the batch",
    "same": "whether every fast path writes the plain one's tokens",
    "cpu": "less beside base with a small model",
    "samplers": "the cost of a decision, in units",
}
What = Annotated[
    str, typer.Argument(help="; ".join(f"{name}: {meaning}" for name, meaning in WHAT.items()) + ".")
]
Families = Annotated[str, typer.Option("--families", "--family", help="gpu, growth: llada, dream or both.")]
Ways = Annotated[
    str | None,
    typer.Option(
        "--ways",
        help="gpu: eager, recorded, compiled, the first is the measure; growth: one of them, else compiled; "
        "same: kernels, recorded, compiled, prefix, dual, recorded-dual.",
    ),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="gpu: PATH.py:FUNCTION, or 'PATH.py:FUNCTION NAME=VALUE', a sampler of other code to time too.",
    ),
]
Models = Annotated[
    str | None, typer.Option("--model", help="same, cpu: shipped models or checkpoint folders.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Small = Annotated[bool, typer.Option("--small", help="The same in miniature, on the CPU unless told.")]
Minutes = Annotated[
    float, typer.Option("--minutes", help="gpu, growth, same: what does not fit is left out.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results and figures.")]
Repeat = Annotated[int, typer.Option("--repeat", help="samplers: turns of each.")]


def bench(
    what: What,
    families: Families = "llada,dream",
    ways: Ways = None,
    reference: References = None,
    model: Models = None,
    device: Device = None,
    small: Small = False,
    minutes: Minutes = 20.0,
    out: Out = None,
    repeat: Repeat = 5,
) -> None:
    """Time the library on this machine."""
    from unmask.checks import one_of

    one_of("what", what, tuple(WHAT))
    if what == "samplers":
        from unmask.bench.samplers import run_samplers

        run_samplers(device or "cpu", repeat)
        return
    common: dict[str, Any] = {"small": small, "out": out, "say": typer.echo}
    limits: dict[str, Any] = {"device": device, "minutes": minutes}
    chosen: dict[str, Any] = {} if ways is None else {"ways": _names(ways)}
    if what == "gpu":
        from unmask.bench.run_gpu import run_gpu

        content = run_gpu(families=_names(families), references=reference or (), **chosen, **limits, **common)
    elif what == "growth":
        from unmask.bench.growth import run_growth

        content = run_growth(families=_names(families), way=ways or "compiled", **limits, **common)
    elif what == "same":
        from unmask.bench.same import MODELS, run_same

        models = MODELS if model is None else _names(model)
        content = run_same(models=models, **chosen, **limits, **common)
    else:
        from unmask.bench.cpu import MODEL, run_cpu

        content = run_cpu(model=model or MODEL, **common)
    if content["problems"]:
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
