"""Run `unmask bench gpu` together with samplers from other code.

    python -m benchmarks.gpu --families llada --reference PATH.py:FUNCTION

Without --reference, the rules of the released samplers in plain torch are timed (released.py).
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.reference import OtherSampler
from benchmarks.released import released
from unmask.bench.gpu import run_gpu
from unmask.bench.report import command_line
from unmask.cli.bench import GpuOptions, fail_on_problems
from unmask.cli.command import command

References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="PATH.py:FUNCTION, or 'PATH.py:FUNCTION NAME=VALUE': a sampler of other code to time.",
    ),
]
app = typer.Typer()


def gpu(options: GpuOptions, reference: References = None) -> None:
    """Time a step at full size, together with samplers from other code."""
    settings = options.settings()
    given = [OtherSampler.read(text) for text in reference or ()]
    named = [("reference", other.name) for other in given]  # without the folders of this machine
    line = command_line("python -m benchmarks.gpu", [*settings.options(), *named], small=settings.small)
    references = given or list(released())
    fail_on_problems(run_gpu(settings, out=options.out, log=typer.echo, references=references, command=line))


app.command()(command(gpu))

if __name__ == "__main__":
    app()
