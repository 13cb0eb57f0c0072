"""Traces: a run as JSON lines. A header with the first canvas, then what every step changed, then an end.

Knows steps and nothing of models, samplers or text. A path that ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from torch import Tensor

from unmask.types import Step

FORMAT = 2
WITHOUT_END = 1  # an older format, whose runs do not say that they are over
DIGITS = 6  # of confidences and divergences; tokens are exact

Rows = list[list[int]]  # tokens of a canvas, [B][N]
Known = TypeVar("Known")


class Commit(NamedTuple):
    """One token written."""

    column: int
    token: int
    confidence: float | None  # None: the sampler does not say
    jsd: float | None


class Held(NamedTuple):
    """One position that a step looked at and left masked."""

    column: int
    token: int  # what it would have written
    confidence: float | None
    jsd: float | None
    persists: bool | None  # its top-1 token did not change for as long as the sampler asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What was run, and the canvas before its first step."""

    version: str  # of unmask
    sampler: str
    fields: Mapping[str, object]  # of the sampler
    model: str
    seeds: Sequence[int]  # per row
    start: int  # the first generated column; the prompt is what stands before it
    padding: Sequence[int]  # per row, columns that stand before the prompt
    mask_id: int
    blocks: Sequence[Sequence[int]]  # the plan: first column, column behind the last, steps at most
    blockwise: bool
    canvas: Rows
    texts: Mapping[str, str] = field(default_factory=dict)  # token id -> text, of the tokens in the canvas
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one step did; lists run over the rows."""

    step: int
    block: int
    commit: list[list[Commit]]
    forced: list[bool]  # the fallback chose, not the rule
    eligible: list[int]  # positions that the rule accepted
    running: list[bool]  # the row took this step
    fresh: list[bool]  # the row needed a forward
    forward: bool  # the model ran
    leftover: bool  # the budget was spent, and what was left got its argmax
    held: list[list[Held]] = field(default_factory=list)  # none in older traces
    texts: Mapping[str, str] = field(default_factory=dict)  # token id -> text, of tokens not named before


@dataclass(frozen=True, slots=True)
class Trace:
    """A run read back."""

    header: Header
    changes: tuple[Change, ...]
    complete: bool = True  # False: its writer was stopped, or still writes

    @property
    def texts(self) -> dict[str, str]:
        """Token id -> text of every token that the run has named."""
        named = dict(self.header.texts)
        for change in self.changes:
            named |= change.texts
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a row took, counted from its trace."""

    steps: int
    forwards: int
    accepted: int  # tokens committed by the rule
    forced: int  # tokens committed by the fallback
    forced_steps: int
    empty_steps: int  # nothing was eligible
    leftovers: int


@contextmanager
def recording(
    path: str | Path, header: Header, *, text: Callable[[int], str] | None = None
) -> Iterator[Callable[[Step], None]]:
    """A function that appends a step to a new trace; `text` names tokens, for readers without a tokenizer."""
    named: set[int] = set()

    def texts(tokens: set[int]) -> dict[str, str]:
        new = sorted(tokens - named) if text is not None else []
        named.update(new)
        return {str(token): text(token) for token in new} if text is not None else {}

    _writable(Path(path))
    with ExitStack() as stack:

        @cache
        def file() -> IO[bytes]:
            # not before there is something to say: a run that is refused leaves an older trace alone
            opened = stack.enter_context(_open(path, "wb"))
            given = {token for row in header.canvas for token in row}
            write(asdict(header) | {"texts": texts(given)}, opened)
            return opened

        def write(content: object, to: IO[bytes]) -> None:
            to.write(json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            to.flush()  # a killed run leaves all that it did

        steps = 0

        def record(step: Step) -> None:
            nonlocal steps
            to, seen = file(), change(step, header.mask_id)
            tokens = {place.token for rows in (seen.commit, seen.held) for row in rows for place in row}
            write(asdict(seen) | {"texts": texts(tokens)}, to)
            steps += 1

        yield record
        write({"end": steps}, file())


def _writable(path: Path) -> None:
    """An error now, if the file cannot be written; it is left as it was."""
    there = path.exists()
    path.open("ab").close()
    if not there:
        path.unlink()


def change(step: Step, mask_id: int) -> Change:
    """What a step did, in plain numbers."""
    decision = step.decision
    commit: list[list[Commit]] = [[] for _ in range(len(step.tokens))]
    held: list[list[Held]] = [[] for _ in range(len(step.tokens))]
    for row, *place, _ in _places(step, decision.commit):
        commit[row].append(Commit(*place))
    for row, *place in _places(step, _left(step, mask_id)):
        held[row].append(Held(*place))
    return Change(
        step=step.index,
        block=step.block,
        commit=commit,
        held=held,
        forced=(decision.forced & step.running).tolist(),
        eligible=decision.eligible.sum(-1).tolist(),
        running=step.running.tolist(),
        fresh=step.fresh.tolist(),
        forward=step.forward,
        leftover=step.leftover,
    )


def _left(step: Step, mask_id: int) -> Tensor:
    """Masks that a step of a running row left as they were, [B, W] bool."""
    return (step.tokens[:, step.window] == mask_id) & step.running[:, None]


def _places(step: Step, where: Tensor) -> Iterator[tuple[Any, ...]]:
    """Row, column, token, confidence, JSD and persistence of some positions [B, W] bool."""
    row, offset = where.nonzero(as_tuple=True)
    told = step.decision.signals
    persists = told.get("persistence")
    return zip(
        row.tolist(),
        (offset + step.window.start).tolist(),
        step.drawn[row, offset].tolist(),
        _signal(told.get("confidence"), row, offset),
        _signal(told.get("jsd"), row, offset),
        [None] * len(row) if persists is None else persists[row, offset].tolist(),
        strict=True,
    )


def _signal(values: Tensor | None, rows: Tensor, offsets: Tensor) -> list[float | None]:
    """A signal at some positions; None where there is no number."""
    if values is None:
        return [None] * len(rows)
    numbers: list[float] = values[rows, offsets].float().tolist()
    return [round(number, DIGITS) if isfinite(number) else None for number in numbers]


def plain(value: object) -> Any:
    """A sampler, or a value of one of its fields, as JSON has it; infinity is the text "inf"."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def read_trace(path: str | Path) -> Trace:
    """The trace in a file; a last line that its writer did not finish is left out."""
    contents, cut = _contents(Path(path))
    if not contents:
        raise ValueError(f"{path} holds no trace; it has no complete line")
    header = _built(Header, contents[0], f"{path}, line 1")
    if header.format not in (WITHOUT_END, FORMAT):
        raise ValueError(
            f"{path} is a trace of format {header.format}; this version reads formats up to {FORMAT}"
        )
    ended = contents[-1] == {"end": len(contents) - 2}
    rest = enumerate(contents[1:-1] if ended else contents[1:], start=2)
    changes = tuple(_change(content, header, f"{path}, line {number}") for number, content in rest)
    return Trace(header, changes, complete=ended or (header.format == WITHOUT_END and not cut))


def replay(trace: Trace, changes: int | None = None) -> Rows:
    """The canvas after so many changes, all of them if it is None."""
    last = list(frames(replace(trace, changes=trace.changes[:changes])))
    return last[-1] if last else [list(row) for row in trace.header.canvas]


def frames(trace: Trace) -> Iterator[Rows]:
    """The canvas after every change, in order."""
    canvas = [list(row) for row in trace.header.canvas]
    for step in trace.changes:
        for row, commits in enumerate(step.commit):
            for commit in commits:
                canvas[row][commit.column] = commit.token
        yield [list(row) for row in canvas]


def count(trace: Trace, row: int) -> Counts:
    """What a row took: the same numbers as in its Result."""
    taken = [step for step in trace.changes if step.running[row] and not step.leftover]
    rest = [step for step in trace.changes if step.leftover]
    return Counts(
        steps=len(taken),
        forwards=sum(step.fresh[row] for step in trace.changes),
        accepted=sum(len(step.commit[row]) for step in taken if not step.forced[row]),
        forced=sum(len(step.commit[row]) for step in taken if step.forced[row]),
        forced_steps=sum(step.forced[row] for step in taken),
        empty_steps=sum(not step.eligible[row] for step in taken),
        leftovers=sum(len(step.commit[row]) for step in rest),
    )


def _open(path: str | Path, mode: str) -> IO[bytes]:
    opener: Callable[..., IO[bytes]] = gzip.open if str(path).endswith(".gz") else open  # type: ignore[assignment]
    return opener(path, mode)


def _contents(path: Path) -> tuple[list[Any], bool]:
    """What the lines of a file hold, without a last one that breaks off, and whether one did."""
    contents: list[Any] = []
    lines = _lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            contents.append(json.loads(line))
        except ValueError:
            if number == len(lines) and not line.endswith(b"\n"):  # its writer was killed
                return contents, True
            raise ValueError(f"{path}, line {number} is not valid JSON; is it a trace of unmask?") from None
    return contents, False


def _lines(path: Path) -> list[bytes]:
    lines: list[bytes] = []
    with _open(path, "rb") as file:
        try:
            for line in file:
                lines.append(line)
        except EOFError:  # a killed process leaves a compressed file without its end
            pass
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is not a valid gzip file ({error})") from None
    return lines


def _built(kind: type[Known], content: Any, where: str) -> Known:
    """A Header or a Change from its fields."""
    try:
        return kind(**content)
    except TypeError as error:
        raise ValueError(f"{where} is no line of a trace: {error}") from None


def _change(content: Any, header: Header, where: str) -> Change:
    """A Change that fits the canvas of its header."""
    read = _built(Change, content, where)
    try:
        read.commit[:] = [[Commit(*place) for place in row] for row in read.commit]
        read.held[:] = [[Held(*place) for place in row] for row in read.held]
        columns = [place.column for rows in (read.commit, read.held) for row in rows for place in row]
        lists = (read.commit, read.held or read.commit, read.forced, read.eligible, read.running, read.fresh)
        fits = all(len(each) == len(header.canvas) for each in lists)
        fits = fits and all(0 <= column < len(header.canvas[0]) for column in columns)
    except TypeError as error:
        raise ValueError(f"{where} is no line of a trace: {error}") from None
    if not fits:
        raise ValueError(f"{where} does not fit the canvas of the header")
    return read
