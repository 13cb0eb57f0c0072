"""The typer application: every command by name."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.bench import bench
from unmask.cli.calibrate import calibrate
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
from unmask.cli.tasks import tasks
from unmask.cli.trace import trace
from unmask.cli.train import train

# shown below the help of a command, to explain the words that it prints; docs/glossary.md has more
COST = (
    "A step decides which positions to commit; a forward runs the model, and a step on an unchanged canvas "
    "needs none. Forced: the share of steps in which no position passed the sampler's rule, so that its "
    "fallback chose one."
)
EPILOGS = {
    **dict.fromkeys(("generate", "chat", "infill"), COST),
    "compare": "A step decides which positions to commit; a forward runs the model. Forwards and speedups "
    "are relative to base if it is among the samplers, or else to the first one.",
    "trace": "By rule: tokens that passed the sampler's rule. Forced: tokens that its fallback chose. "
    "Leftover: tokens filled in after the step budget was spent. Revoked: tokens masked again. Forced steps: "
    "those in which the fallback acted. Empty steps: those in which no position passed the rule.",
}
LETTERS = (
    "c is the minimum confidence of LESS (min_confidence), d the maximum JSD (max_jsd), P the number of "
    "steps for which the most likely token must stay the same (persistence). JSD, the Jensen-Shannon "
    "divergence, measures how far a distribution has moved since the last step: 0 is unchanged, ln 2 = 0.69 "
    "is the maximum. Forced share: steps in which no position passed the rule, so the fallback chose. L is "
    "the length of a generation, T its step budget."
)
app = typer.Typer(
    name="unmask",
    help="Fast, trustworthy decoding of masked diffusion language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for function in (
    *(generate, chat, infill, compare, samplers, tasks, trace, train, serve, score, compare_runs),
    calibrate,
):
    app.command(epilog=EPILOGS.get(function.__name__))(command(function))
app.command(epilog=LETTERS)(command(reproduce))
app.add_typer(bench, name="bench")
app.command("eval", epilog=COST)(command(evaluate))  # a function named eval would hide the builtin


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
