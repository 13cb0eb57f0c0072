"""`unmask tasks`: list the tasks of `eval` and the experiments of `reproduce`, with a sentence each."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.catalog import EXPERIMENTS, TASKS
from unmask.cli.output import print_table

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object with all of them.")]


def tasks(json: AsJson = False) -> None:
    """List the tasks of `eval` and the experiments of `reproduce`."""
    if json:
        from json import dumps

        listed = {name: entry._asdict() for name, entry in TASKS.items()}
        typer.echo(dumps({"tasks": listed, "experiments": EXPERIMENTS}, ensure_ascii=False))
        return
    _print_tasks()
    print_experiments()


def _print_tasks() -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        title="tasks of unmask eval",
        title_justify="left",
        caption=(
            "protocol: how it prompts and scores; the first is the default, --protocol chooses another\n"
            "The shipped models were not trained on mini-fim-code to mini-report: see unmask train --grid."
        ),
        caption_justify="left",
    )
    table.add_column("task", style="cyan", no_wrap=True)
    table.add_column("asks")
    table.add_column("items", justify="right")
    table.add_column("protocol", style="dim")
    for name, entry in TASKS.items():
        table.add_row(name, entry.sentence, f"{entry.items:,}", ", ".join(entry.protocols))
    print_table(table)


def print_experiments() -> None:
    """Print every experiment with a sentence."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE, title="experiments of unmask reproduce", title_justify="left", show_header=False
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, sentence in EXPERIMENTS.items():
        table.add_row(name, sentence)
    print_table(table)
