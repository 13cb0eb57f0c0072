"""The typer application: every command by name."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.chat import chat
from unmask.cli.command import command
from unmask.cli.compare import compare
from unmask.cli.generate import generate
from unmask.cli.infill import infill
from unmask.cli.samplers import samplers
from unmask.cli.trace import trace
from unmask.cli.train import train

app = typer.Typer(
    name="unmask",
    help="Fast, trustworthy decoding of masked diffusion language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (generate, chat, infill, compare, samplers, trace, train):
    app.command()(command(function))


def _version(wanted: bool) -> None:
    if wanted:
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
