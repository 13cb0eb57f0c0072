"""Write a run as JSON lines: a header with the first canvas, one line per step, and an end line.

A path that ends in .gz is compressed. This module depends on steps, not on models, samplers or text.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any, NamedTuple

from torch import Tensor

from unmask.types import Step

FORMAT = 3
DIGITS = 6  # decimal places of signals

Rows = list[list[int]]  # tokens of a canvas, [B][N]
Signals = Mapping[str, float | bool | None]  # by name; None: not a finite number


class Position(NamedTuple):
    """One column of one row, as a step saw it.

    Attributes:
        column: Column of the canvas.
        token: The token that the step wrote, or would have written.
        eligible: Whether the rule accepted the position.
        signals: Values of the sampler's signals, by name.
    """

    column: int
    token: int
    eligible: bool
    signals: Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The settings of a run, and the canvas before its first step.

    Attributes:
        version: Version of unmask.
        sampler: Name of the sampler.
        fields: Fields of the sampler.
        model: Name of the model.
        seeds: The seed of each row.
        start: The first generated column, right after the prompt.
        padding: Number of columns before the prompt of each row.
        mask_id: The mask token.
        blocks: First column, column after the last and step budget of each block.
        blockwise: True in the semi-autoregressive regime; False: the whole generation is one block.
        canvas: Tokens before the first step, by row.
        end_ids: The tokens that end a text.
        texts: Token id -> text, of the tokens in the canvas.
        format: Version of the format.
    """

    version: str
    sampler: str
    fields: Mapping[str, object]
    model: str
    seeds: Sequence[int]
    start: int
    padding: Sequence[int]
    mask_id: int
    blocks: Sequence[Sequence[int]]
    blockwise: bool
    canvas: Rows
    end_ids: Sequence[int] = field(default_factory=list)
    texts: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step; each list has an entry per row.

    Attributes:
        step: Number of the step, from 1.
        block: Number of the block, from 0.
        commit: Positions that the step committed.
        held: Masks that the step left or made.
        revoked: Columns that the step masked again.
        rewritten: Positions whose token the step overwrote, with the new token.
        forced: Whether the fallback chose instead of the rule.
        eligible: Number of positions that the rule accepted.
        running: Whether the row took this step.
        fresh: Whether the row needed a forward.
        forward: Whether the model ran.
        leftover: Whether the budget was spent, so that the remaining masks got their argmax.
        guesses: Number of guesses of the next canvases that ran beside a fresh row.
        texts: Token id -> text, of tokens not named before.
    """

    step: int
    block: int
    commit: list[list[Position]]
    held: list[list[Position]]
    revoked: list[list[int]]
    rewritten: list[list[Position]]
    forced: list[bool]
    eligible: list[int]
    running: list[bool]
    fresh: list[bool]
    forward: bool
    leftover: bool
    guesses: list[int]
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def positions(self) -> Iterator[Position]:
        """All recorded positions of all rows."""
        for rows in (self.commit, self.held, self.rewritten):
            for row in rows:
                yield from row


@contextmanager
def recording(
    path: str | Path,
    header: Header,
    *,
    text: Callable[[int], str] | None = None,
    failed: Callable[[OSError], None] | None = None,
) -> Iterator[Callable[[Step], None]]:
    """Yield a function that appends a step to a new trace.

    Raise at once if the file is not writable. It is replaced at the first step, so a run that is refused
    leaves an older trace alone. Each line is flushed, so a killed run leaves a readable trace. `text` spells
    tokens for readers without a tokenizer. If a later write fails, pass the error to `failed` and skip the
    remaining steps; without `failed`, raise.
    """
    writer = _Writer(Path(path), header, text, failed)
    try:
        yield writer.write_step
        writer.write_end()
    finally:
        writer.close()


class _Writer:
    """A trace file that is opened when its first line is written."""

    def __init__(
        self,
        path: Path,
        header: Header,
        text: Callable[[int], str] | None,
        failed: Callable[[OSError], None] | None,
    ) -> None:
        _check_writable(path)
        self._path = path
        self._header = header
        self._text = text
        self._failed = failed
        self._ended = False  # whether a write has failed
        self._named: set[int] = set()  # tokens whose text was written
        self._steps = 0
        self._file: IO[bytes] | None = None

    def write_step(self, step: Step) -> None:
        if self._ended:
            return
        recorded = change(step, self._header.mask_id)
        self._try(lambda: self._write(asdict(recorded), {position.token for position in recorded.positions}))
        self._steps += 1

    def write_end(self) -> None:
        if not self._ended:
            self._try(lambda: self._write({"end": self._steps}))

    def close(self) -> None:
        if self._file is not None:
            self._try(self._file.close)

    def _try(self, work: Callable[[], None]) -> None:
        """Do some work on the file. Report its first error, or raise it, and ignore later ones."""
        try:
            work()
        except OSError as error:
            if self._ended:
                return
            self._ended = True
            error.filename = error.filename or str(self._path)
            if self._failed is None:
                raise
            self._failed(error)

    def _write(self, content: dict[str, Any], tokens: set[int] | None = None) -> None:
        """Append a line, with the texts of these tokens; the first line opens the file."""
        if self._file is None:
            self._file = open_trace(self._path, "wb")
            self._write(asdict(self._header), {token for row in self._header.canvas for token in row})
        if tokens is not None:
            content["texts"] = self._new_texts(tokens)
        self._file.write(json.dumps(content, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def _new_texts(self, tokens: set[int]) -> dict[str, str]:
        """Return the texts of tokens that no line has named yet."""
        if self._text is None:
            return {}
        new = sorted(tokens - self._named)
        self._named.update(new)
        return {str(token): self._text(token) for token in new}


def open_trace(path: Path, mode: str) -> IO[bytes]:
    """Open a trace file, compressed or not."""
    opener: Callable[..., IO[bytes]] = gzip.open if path.suffix == ".gz" else open  # type: ignore[assignment]
    return opener(path, mode)


def _check_writable(path: Path) -> None:
    """Raise if the file cannot be written; leave it as it was."""
    exists = path.exists()
    path.open("ab").close()
    if not exists:
        path.unlink()


def change(step: Step, mask_id: int) -> Change:
    """Return a step as plain numbers."""
    decision, canvas = step.decision, step.tokens[:, step.window]
    masked = (canvas == mask_id) & step.running[:, None]
    return Change(
        step=step.index,
        block=step.block,
        commit=_positions(step, decision.commit, canvas),
        held=_positions(step, masked, step.drawn),
        revoked=_columns(step, decision.revoke),
        rewritten=_positions(step, decision.rewrite, canvas),
        forced=(decision.forced & step.running).tolist(),
        eligible=decision.eligible.sum(-1).tolist(),
        running=step.running.tolist(),
        fresh=step.fresh.tolist(),
        forward=step.forward,
        leftover=step.leftover,
        guesses=[0] * len(step.tokens) if step.guesses is None else step.guesses.tolist(),
    )


def _columns(step: Step, where: Tensor | None) -> list[list[int]]:
    """Return the canvas columns where a window [B, W] bool is true, row by row."""
    columns: list[list[int]] = [[] for _ in range(len(step.tokens))]
    if where is not None:
        for row, offset in where.nonzero().tolist():
            columns[row].append(step.window.start + offset)
    return columns


def _positions(step: Step, where: Tensor | None, tokens: Tensor) -> list[list[Position]]:
    """Return the positions where `where` [B, W] is true, row by row, with their `tokens` [B, W]."""
    positions: list[list[Position]] = [[] for _ in range(len(step.tokens))]
    if where is None:
        return positions
    rows, offsets = where.nonzero(as_tuple=True)
    signals = step.decision.signals
    columns = zip(*(plain_numbers(values[rows, offsets]) for values in signals.values()), strict=True)
    places = zip(
        rows.tolist(),
        (offsets + step.window.start).tolist(),
        tokens[rows, offsets].tolist(),
        step.decision.eligible[rows, offsets].tolist(),
        columns if signals else [()] * len(rows),
        strict=True,
    )
    for row, column, token, eligible, values in places:
        positions[row].append(Position(column, token, eligible, dict(zip(signals, values, strict=True))))
    return positions


def plain_numbers(values: Tensor) -> list[float | bool | None]:
    """Convert the values [n] of a signal to JSON values, None where one is not finite."""
    if not values.is_floating_point():
        return values.tolist()
    return [round(value, DIGITS) if isfinite(value) else None for value in values.float().tolist()]


def plain(value: object) -> Any:
    """Convert a sampler or a field's value to a JSON value; infinity and other types become strings.

    A wrapper has its own fields and those of the sampler inside.
    """
    if is_dataclass(value):
        named = {item.name: plain(getattr(value, item.name)) for item in fields(value)}
        return {**named.pop("sampler", {}), **named}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    return value if value is None or isinstance(value, (int, str, list, dict)) else str(value)
