"""Print texts on standard output, their cost on standard error, and JSON for machines."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import typer

from unmask.cli.printable import printable
from unmask.text.display import plural

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.text.generate import Cost, Generation
    from unmask.text.infill import Infilling

HEADING = 80  # characters of a prompt in a heading
UNBOUNDED = 10_000  # columns; wider than any table


def print_text(text: str, *, end: str = "\n") -> None:
    """Print a text; on a terminal, without control characters."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: it was closed
    typer.echo((printable(text) if on_terminal else text) + end, nl=False)


def print_heading(number: int, total: int, prompt: str) -> None:
    """Print the prompt of one text of several, shortened to a line."""
    line = " ".join(printable(prompt).split())
    shown = line if len(line) <= HEADING else f"{line[:HEADING]}..."
    gap = "" if number == 1 else "\n"
    typer.secho(f"{gap}== {number} of {total}: {shown} ==", bold=True)


def print_table(table: Table) -> None:
    """Print a table; fold cells that are too wide for the terminal instead of cutting them."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    narrowest = Measurement.get(console, console.options.update_width(UNBOUNDED), table).minimum
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.no_wrap and narrowest <= console.width  # else rich would cut these
    console.print(table)


def print_cost(cost: Cost, finish: str | None = None, seed: int | None = None) -> None:
    """Print the cost of a text as one dim line, with the seed that repeats it."""
    facts = [
        plural(cost.steps, "step"),
        plural(cost.forwards, "forward"),
        f"{cost.forced_share:.0%} forced",
        f"{cost.seconds:.2f} s",
    ]
    ending = [] if finish is None else [f"finish: {finish}"]
    ending += [] if seed is None else [f"seed: {seed}"]
    typer.secho(" · ".join([*facts, *ending]), dim=True, err=True)


def print_json(answer: Generation | Infilling, **more: object) -> None:
    """Print an answer and more fields as one line of JSON."""
    shares = {"forced_share": answer.forced_share, "empty_share": answer.empty_share}
    facts = asdict(replace(answer, trace=None))
    del facts["trace"]  # --trace writes it
    typer.echo(json.dumps({**more, **facts, **shares}, ensure_ascii=False, allow_nan=False))
