"""Read a trace back: its steps, the canvas after each of them, and their counts."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from unmask.files import LARGEST
from unmask.trace.record import FORMAT, Change, Header, Position, Rows, open_trace
from unmask.types import Counts

Line = TypeVar("Line", Header, Change)


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run.

    Attributes:
        header: The settings, and the canvas before the first step.
        changes: The steps, in order.
        complete: False if the run was stopped or is still running.
    """

    header: Header
    changes: tuple[Change, ...]
    complete: bool = True

    @property
    def texts(self) -> dict[str, str]:
        """Token id -> text, of every token that the trace names."""
        texts = dict(self.header.texts)
        for change in self.changes:
            texts |= change.texts
        return texts


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a file, without an unfinished last line."""
    lines = _read_json(Path(path))
    if not lines:
        raise ValueError(f"{path} holds no trace; it has no complete line")
    _check_format(lines[0], path)
    header = _build(Header, lines[0], f"{path}, line 1")
    complete = lines[-1] == {"end": len(lines) - 2}
    rest = enumerate(lines[1:-1] if complete else lines[1:], start=2)
    changes = tuple(_read_change(line, header, f"{path}, line {number}") for number, line in rest)
    return Trace(header, changes, complete)


def replay(trace: Trace, changes: int | None = None) -> Rows:
    """Return the canvas after so many changes, or after all of them if `changes` is None."""
    canvases = list(frames(replace(trace, changes=trace.changes[:changes])))
    return canvases[-1] if canvases else [list(row) for row in trace.header.canvas]


def frames(trace: Trace) -> Iterator[Rows]:
    """Yield the canvas after every change, in order."""
    canvas = [list(row) for row in trace.header.canvas]
    for change in trace.changes:
        for row, tokens in enumerate(canvas):
            for column in change.revoked[row]:
                tokens[column] = trace.header.mask_id
            for position in (*change.commit[row], *change.rewritten[row]):
                tokens[position.column] = position.token
        yield [list(row) for row in canvas]


def one_row(trace: Trace, row: int, spell: Callable[[int], str] | None = None) -> Trace:
    """Return the trace of one row alone, without steps that it did not take; `spell` decodes its tokens."""
    header, canvas = trace.header, list(trace.header.canvas[row])
    changes = tuple(_of_row(step, row) for step in trace.changes if step.running[row] or step.commit[row])
    texts = trace.texts
    if spell is not None:
        tokens = {*canvas, *(position.token for step in changes for position in step.positions)}
        texts = {str(token): spell(token) for token in sorted(tokens)}
    own: dict[str, Any] = {"seeds": [header.seeds[row]], "padding": [header.padding[row]], "canvas": [canvas]}
    return Trace(replace(header, **own, texts=texts), changes, trace.complete)


def _of_row(step: Change, row: int) -> Change:
    """Return the change with the entries of one row only."""
    lists = {item.name: getattr(step, item.name) for item in fields(step)}
    own: dict[str, Any] = {name: [value[row]] for name, value in lists.items() if isinstance(value, list)}
    return replace(step, **own, texts={})


def count(trace: Trace, row: int) -> Counts[int]:
    """Count the cost of a row; the numbers equal those of its Result."""
    steps = [change for change in trace.changes if change.running[row] and not change.leftover]
    leftovers = [change for change in trace.changes if change.leftover]
    return Counts(
        steps=len(steps),
        forwards=sum(change.fresh[row] for change in trace.changes),
        rows=sum(1 + change.guesses[row] for change in trace.changes if change.fresh[row]),
        accepted=sum(len(change.commit[row]) for change in steps if not change.forced[row]),
        forced=sum(len(change.commit[row]) for change in steps if change.forced[row]),
        forced_steps=sum(change.forced[row] for change in steps),
        empty_steps=sum(not change.eligible[row] for change in steps),
        leftovers=sum(len(change.commit[row]) for change in leftovers),
        revoked=sum(len(change.revoked[row]) + len(change.rewritten[row]) for change in trace.changes),
    )


def _read_json(path: Path) -> list[Any]:
    """Parse the lines of a file; drop an unfinished last line."""
    contents: list[Any] = []
    lines = _read_lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            contents.append(json.loads(line))
        except (ValueError, RecursionError):
            if number == len(lines) and not line.endswith(b"\n"):  # the writer was killed
                break
            raise ValueError(f"{path}, line {number} is not valid JSON; is it a trace of unmask?") from None
    return contents


def _read_lines(path: Path) -> list[bytes]:
    lines: list[bytes] = []
    size = 0
    with open_trace(path, "rb") as file:
        try:
            while line := file.readline(LARGEST):
                lines.append(line)
                size += len(line)
                if size > LARGEST:
                    raise ValueError(f"{path} has more than {LARGEST} bytes; name another file")
        except EOFError:  # a killed process leaves a compressed file without its end
            pass
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a valid gzip file ({error})") from None
    return lines


def _check_format(line: Any, path: str | Path) -> None:
    """Raise if the header names another format; a line without a format passes."""
    stored = line.get("format", FORMAT) if isinstance(line, dict) else FORMAT
    if stored != FORMAT:
        raise ValueError(
            f"{path} is a trace of format {stored}; this version reads format {FORMAT}: record the run again"
        )


def _build(kind: type[Line], content: Any, where: str) -> Line:
    """Build a Header or a Change from the fields of a line."""
    try:
        return kind(**content)
    except TypeError:
        raise ValueError(f"{where} is not a line of a trace; record it again with --trace") from None


def _read_change(content: Any, header: Header, where: str) -> Change:
    """Build a Change that fits the canvas of its header."""
    change = _build(Change, content, where)
    try:
        for rows in (change.commit, change.held, change.rewritten):
            rows[:] = [[_read_position(values) for values in row] for row in rows]
        fits = _fits(change, header.canvas)
    except TypeError as error:
        raise ValueError(f"{where} is not a line of a trace: {error}") from None
    if not fits:
        raise ValueError(f"{where} does not fit the canvas of the header")
    return change


def _read_position(values: Any) -> Position:
    position = Position(*values)
    if not isinstance(position.signals, dict):
        raise TypeError(f"the signals of a position must be an object, got {position.signals!r}")
    return position


def _fits(change: Change, canvas: Rows) -> bool:
    """Return whether a change has an entry per row, and only columns of the canvas."""
    per_row: tuple[list[Any], ...] = (
        change.commit,
        change.held,
        change.revoked,
        change.rewritten,
        change.forced,
        change.eligible,
        change.running,
        change.fresh,
        change.guesses,
    )
    columns = [position.column for position in change.positions]
    columns += [column for row in change.revoked for column in row]
    return all(len(entries) == len(canvas) for entries in per_row) and all(
        0 <= column < len(canvas[0]) for column in columns
    )
