"""`unmask trace`: summarise one trace or two, and write their page."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.output import print_table
from unmask.cli.picture import END
from unmask.cli.printable import printable
from unmask.files import write_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.trace import Difference, Trace

File = Annotated[str, typer.Argument(metavar="FILE", help="A trace that --trace wrote.")]
Other = Annotated[
    str | None,
    typer.Argument(metavar="[OTHER]", help="Another trace of the same prompts, to compare with."),
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="OUT.html", help="Write a page that replays the trace.")
]


def trace(file: File, other: Other = None, html: Html = None) -> None:
    """Summarise one or two traces, and where two differ; with --html, write a page that shows any step."""
    from unmask.trace import read_trace

    names = [name for name in (file, other) if name is not None]
    if html is not None:
        _check_free(html, names)
    read = [read_trace(name) for name in names]
    if other is not None:
        _check_same(*read)
    for name, each in zip(names, read, strict=True):
        if not each.complete:
            typer.echo(f"{name} is incomplete: its run was stopped, or is still running", err=True)
        _summarise(each)
    if other is not None:
        for row in range(len(read[0].header.canvas)):
            typer.secho(f"text {row + 1} of both: ", dim=True, nl=False)
            typer.echo(_parting(read[0], read[1], row))
    if html is not None:
        from unmask.trace.html import to_html

        write_bytes(Path(html), to_html(*read).encode())
        typer.secho(f"wrote {html}", dim=True, err=True)


def _check_free(html: str, names: list[str]) -> None:
    """Raise if the page would overwrite one of its traces."""
    if Path(html).resolve() in [Path(name).resolve() for name in names]:
        raise ValueError(f"--html must name another file than the traces, got {html!r}; give it a new name")


def _check_same(read: Trace, other: Trace) -> None:
    """Raise unless two traces begin with the same canvas, so that their positions can be compared."""
    if read.header.canvas != other.header.canvas:
        raise ValueError(
            "the two traces begin with different canvases; compare runs of the same prompts and length"
        )


def _summarise(read: Trace) -> None:
    header = read.header
    typer.secho(f"{header.sampler} on {header.model}, unmask {header.version}", bold=True)
    typer.secho(", ".join(f"{name}={value}" for name, value in header.fields.items()), dim=True)
    print_table(_table(read))
    means = _signal_means(read)
    if means:
        typer.secho(printable("mean at commit: " + ", ".join(means)), dim=True)
    for row in range(len(header.canvas)):
        typer.secho(f"text {row + 1}: ", dim=True, nl=False)
        typer.echo(printable(_text(read, row)))


def _table(read: Trace) -> Table:
    from rich import box
    from rich.table import Table

    from unmask.trace import count

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ("text", "steps", "forwards", "by\nrule", "forced", "leftover", "revoked")
    for name in (*columns, "forced\nsteps", "empty\nsteps"):
        table.add_column(name, justify="right")
    for row in range(len(read.header.canvas)):
        counts = count(read, row)
        numbers = (
            row + 1,
            counts.steps,
            counts.forwards,
            counts.accepted,
            counts.forced,
            counts.leftovers,
            counts.revoked,
        )
        table.add_row(*map(str, numbers), f"{counts.forced_share:.0%}", f"{counts.empty_share:.0%}")
    return table


def _signal_means(read: Trace) -> list[str]:
    """Return every signal with its mean over the committed positions that have it."""
    values: dict[str, list[float]] = {}
    for change in read.changes:
        for position in (position for row in change.commit for position in row):
            for name, value in position.signals.items():
                if value is not None:
                    values.setdefault(name, []).append(value)
    return [f"{name} {sum(numbers) / len(numbers):.3g}" for name, numbers in values.items()]


def _text(read: Trace, row: int) -> str:
    """Return the generated text of a row."""
    from unmask.trace import replay

    header = read.header
    first = header.canvas[row].index(header.mask_id) if header.mask_id in header.canvas[row] else header.start
    runs = groupby(replay(read)[row][first:], key=lambda token: token in header.end_ids)
    return "".join(END if ends else "".join(_spell(read, token) for token in run) for ends, run in runs)


def _spell(read: Trace, token: int) -> str:
    return "░" if token == read.header.mask_id else read.texts.get(str(token), f"<{token}>")


def _parting(read: Trace, other: Trace, row: int) -> str:
    """Say where two runs wrote different tokens: the first position, and the first step."""
    from unmask.trace import differences, written

    found = differences(read, other, row)
    if not found:
        same_columns = written(read, row).keys() == written(other, row).keys()
        return "the same tokens" if same_columns else "the same tokens wherever both runs wrote one"
    names = (read.header.sampler, other.header.sampler)
    if names[0] == names[1]:
        names = ("the first run", "the second run")
    start = read.header.canvas[row].index(read.header.mask_id)

    def tell(difference: Difference) -> str:
        facts = zip(names, (read, other), difference.tokens, difference.steps, strict=True)
        wrote = [f"{name} wrote {_quote(run, token)} in step {step}" for name, run, token, step in facts]
        return f"position {difference.column - start + 1}: {', '.join(wrote)}"

    earliest = min(found, key=lambda difference: difference.step)
    in_time = "" if earliest is found[0] else f"; the earliest difference in time is at {tell(earliest)}"
    return f"they part at {tell(found[0])}{in_time}; {len(found)} differences in total"


def _quote(read: Trace, token: int) -> str:
    return f"{END} (end of text)" if token in read.header.end_ids else repr(_spell(read, token))
