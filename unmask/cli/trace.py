"""`unmask trace`: what a trace holds, or two of them, and their page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.trace import Trace

File = Annotated[str, typer.Argument(metavar="FILE", help="A trace, as --trace writes it.")]
Other = Annotated[
    str | None,
    typer.Argument(metavar="[OTHER]", help="Another trace of the same prompts, to compare with."),
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="OUT.html", help="Write a page that replays the trace.")
]


def trace(file: File, other: Other = None, html: Html = None) -> None:
    """Sum up a trace, or two of them; with --html, write a page that shows any step and where they differ."""
    from unmask.trace import read_trace

    names = [name for name in (file, other) if name is not None]
    if html is not None:
        _check_free(html, names)
    read = [read_trace(name) for name in names]
    if other is not None:
        _check_same(*read)
    for name, each in zip(names, read, strict=True):
        if not each.complete:
            typer.echo(f"{name} is incomplete: its run was stopped, or still goes on", err=True)
        _sum_up(each)
    if html is not None:
        from unmask.trace.html import to_html

        Path(html).write_text(to_html(*read), encoding="utf-8")
        typer.secho(f"wrote {html}", dim=True, err=True)


def _check_free(html: str, names: list[str]) -> None:
    """A page must not be written over what it shows."""
    if Path(html).resolve() in [Path(name).resolve() for name in names]:
        raise ValueError(f"--html must name another file than the traces, got {html!r}; give it a new name")


def _check_same(read: Trace, other: Trace) -> None:
    """Two runs can be compared position by position only if they began alike."""
    if read.header.canvas != other.header.canvas:
        raise ValueError(
            "the two traces begin with different canvases; compare runs of the same prompts and length"
        )


def _sum_up(read: Trace) -> None:
    from rich.console import Console

    header = read.header
    typer.secho(f"{header.sampler} on {header.model}, unmask {header.version}", bold=True)
    typer.secho(", ".join(f"{name}={value}" for name, value in header.fields.items()), dim=True)
    Console().print(_table(read))
    for row in range(len(header.canvas)):
        typer.secho(f"row {row}: ", dim=True, nl=False)
        typer.echo(printable(_text(read, row)))


def _table(read: Trace) -> Table:
    from rich import box
    from rich.table import Table

    from unmask.trace import count

    table = Table(box=box.SIMPLE_HEAD)
    for name in (
        "row",
        "steps",
        "forwards",
        "by rule",
        "forced",
        "leftover",
        "forced\nsteps",
        "empty\nsteps",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in range(len(read.header.canvas)):
        counts = count(read, row)
        numbers = (counts.steps, counts.forwards, counts.accepted, counts.forced, counts.leftovers)
        shares = [f"{part / max(1, counts.steps):.0%}" for part in (counts.forced_steps, counts.empty_steps)]
        table.add_row(str(row), *map(str, numbers), *shares)
    return table


def _text(read: Trace, row: int) -> str:
    """What a row holds from its first generated column on."""
    from unmask.trace import replay

    texts, header = read.texts, read.header
    tokens = replay(read)[row][header.start :]
    return "".join(
        "░" if token == header.mask_id else texts.get(str(token), f"<{token}>") for token in tokens
    )
