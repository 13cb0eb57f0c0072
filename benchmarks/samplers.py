"""Run `unmask bench samplers` together with a plain implementation of each rule (plain.py).

python -m benchmarks.samplers
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.plain import PLAIN
from unmask.bench.samplers import run_samplers
from unmask.cli.command import command

app = typer.Typer()


def samplers(
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Turns of each.")] = 5,
) -> None:
    """Time a decision and its plain rule, in passes over the logits."""
    run_samplers(device, repeat, rules=PLAIN, log=typer.echo)


app.command()(command(samplers))

if __name__ == "__main__":
    app()
