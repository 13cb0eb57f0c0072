"""The typer application: every command by name."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.bench import bench
from unmask.cli.chat import chat
from unmask.cli.command import command
from unmask.cli.compare import compare
from unmask.cli.compare_runs import compare_runs
from unmask.cli.evaluate import evaluate
from unmask.cli.generate import generate
from unmask.cli.infill import infill
from unmask.cli.reproduce import reproduce
from unmask.cli.samplers import samplers
from unmask.cli.score import score
from unmask.cli.serve import serve
from unmask.cli.trace import trace
from unmask.cli.train import train

app = typer.Typer(
    name="unmask",
    help="Fast, trustworthy decoding of masked diffusion language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (generate, chat, infill, compare, samplers, trace, train, serve, score, compare_runs):
    app.command()(command(function))
app.command()(command(reproduce))
app.add_typer(bench, name="bench")
app.command("eval")(command(evaluate))  # a function named eval would hide the builtin


def _version(show: bool) -> None:
    if show:
        from unmask import __version__

        typer.echo(f"unmask {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Fast, trustworthy decoding of masked diffusion language models."""
