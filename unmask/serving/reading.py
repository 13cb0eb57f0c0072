"""Read a canvas as text while it fills: its final part, and the state of every position."""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from typing import Any, Protocol

from unmask.serving.job import Snapshot
from unmask.serving.look import Look
from unmask.serving.request import Request
from unmask.text.end_of_text import REPLACEMENT
from unmask.text.gaps import Gap
from unmask.text.generate import Prepared
from unmask.text.infill import PreparedInfill
from unmask.text.prompts import TextTokenizer, tokenizer_of
from unmask.text.stream import FinalText
from unmask.trace.record import DIGITS, plain_numbers
from unmask.types import Step


class Reader(Protocol):
    """Reads the final text of a canvas in pieces."""

    @property
    def sent(self) -> int:
        """Characters read so far."""
        ...

    def read(self, tokens: list[int]) -> str:
        """Return the final text after the pieces already read."""
        ...


def reader(request: Request) -> Reader:
    """Return the reader for a request's canvas."""
    if isinstance(request.source, Prepared):
        return _Continued(request.source)
    return _Filled(request.source)


class _Continued:
    """Reads the text after a prompt."""

    def __init__(self, batch: Prepared) -> None:
        [start] = batch.canvas.starts
        self._text = slice(start, start + batch.length)
        self._final = FinalText(batch.ending)

    @property
    def sent(self) -> int:
        return self._final.sent

    def read(self, tokens: list[int]) -> str:
        return self._final.read(tokens[self._text])


class _Filled:
    """Reads a text with gaps up to the first mask."""

    def __init__(self, filling: PreparedInfill) -> None:
        self.sent = 0
        self._sheet = filling.sheet
        self._mask_id = filling.canvas.mask_id
        self._decode = tokenizer_of(filling.model).decode

    def read(self, tokens: list[int]) -> str:
        text = self._final(tokens)[self.sent :]
        self.sent += len(text)
        return text

    def _final(self, tokens: list[int]) -> str:
        text, gaps = "", iter(self._sheet.gaps)
        for part in self._sheet.parts:
            if not isinstance(part, Gap):
                text += part
                continue
            ids = list(takewhile(lambda token: token not in self._sheet.ends, tokens[next(gaps)]))
            if self._mask_id not in ids:
                text += self._decode(ids)
                continue
            final = self._decode(takewhile(lambda token: token != self._mask_id, ids))
            return text + final.rstrip(REPLACEMENT)
        return text


def settled(snapshot: Snapshot, mask_id: int) -> list[int]:
    """Return the tokens of a canvas, with a mask in every column that a later step may change."""
    tokens: list[int] = snapshot.tokens.tolist()
    if snapshot.revocable is not None:
        columns = range(*snapshot.revocable.indices(len(tokens)))
        tokens[snapshot.revocable] = [mask_id] * len(columns)
    return tokens


class Drafts:
    """Reads the state of every position, and its text or, where it is masked, a guess."""

    def __init__(self, request: Request, tokenizer: TextTokenizer, eos_ids: tuple[int, ...]) -> None:
        canvas = request.run.canvas
        self._given = (canvas.tokens[0] != canvas.mask_id).tolist()
        # the prompt is left out; a text with gaps is shown as a whole
        self._start = canvas.starts[0] if isinstance(request.source, Prepared) else 0
        self._mask_id = canvas.mask_id
        self._ends = request.run.bans.ends or eos_ids
        self._text = lru_cache(maxsize=4096)(lambda token: tokenizer.decode([token]))

    def read(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return the canvas after a step as a JSON object."""
        positions = self._positions(snapshot)
        canvas: dict[str, Any] = {"step": snapshot.step, "positions": positions}
        if snapshot.taken is None or snapshot.look is None:
            return canvas
        step = snapshot.taken
        self._add_details(positions, snapshot.window, step, snapshot.look)
        return {
            **canvas,
            "block": step.block,
            "forward": step.forward,
            "forced": bool(step.decision.forced[0]),
            "leftover": step.leftover,
        }

    def _positions(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the text and state of every position; those before the first that may change are "final"."""
        tokens, guesses = snapshot.tokens.tolist(), snapshot.guess.tolist()
        final = settled(snapshot, self._mask_id)
        first = int(snapshot.window.start)
        positions, behind = [], False
        for column in range(self._start, len(tokens)):
            token = tokens[column]
            behind = behind or (final[column] == self._mask_id and not self._given[column])
            state = self._state(token, column, behind)
            if state == "masked" and 0 <= column - first < len(guesses):
                token = guesses[column - first]
            unknown = token == self._mask_id or state == "end"
            positions.append({"text": "" if unknown else self._text(token), "state": state})
        return positions

    def _add_details(self, positions: list[dict[str, Any]], window: slice, step: Step, details: Look) -> None:
        """Add candidates and signals to the positions that are masked or that the step changed."""
        decision, candidates = step.decision, details.candidates
        commit, eligible = decision.commit[0].tolist(), decision.eligible[0].tolist()
        revoked, rewritten = (
            [False] * len(commit) if columns is None else columns[0].tolist()
            for columns in (decision.revoke, decision.rewrite)
        )
        signals = {name: plain_numbers(values) for name, values in details.signals.items()}
        drawn = step.drawn[0].tolist()
        for offset, column in enumerate(range(window.start, window.stop)):
            position = positions[column - self._start]
            if not (position["state"] == "masked" or commit[offset] or rewritten[offset]):
                continue
            position.update(
                token=drawn[offset],
                committed=commit[offset],
                revoked=revoked[offset],
                rewritten=rewritten[offset],
                eligible=eligible[offset],
                candidates=[[token, self._text(token), round(p, DIGITS)] for token, p in candidates[offset]],
                signals={name: values[offset] for name, values in signals.items()},
            )

    def _state(self, token: int, column: int, behind: bool) -> str:
        if self._given[column]:
            return "given"
        if token == self._mask_id:
            return "masked"
        if token in self._ends:
            return "end"
        return "committed" if behind else "final"
