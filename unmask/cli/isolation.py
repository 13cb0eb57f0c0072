"""Check the isolation of generated programs, for the commands that judge them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.runs import say_dimly

if TYPE_CHECKING:
    from unmask.evals.task import Task

UnsafeCode = Annotated[
    bool,
    typer.Option("--unsafe-code", help="Run generated programs even if this machine cannot isolate them."),
]


def check_isolation(tasks: Iterable[Task], *, unsafe: bool) -> str:
    """Print and return how generated programs are isolated, or return "" if no task runs any.

    Raise if the isolation is too weak and the user does not allow that.
    """
    from unmask.sandbox import allow_unsafe_code, require_isolation

    if unsafe:
        allow_unsafe_code()
    if not any(task.runs_programs for task in tasks):
        return ""
    isolation = str(require_isolation())
    say_dimly(f"generated programs are isolated by {isolation}")
    return isolation
