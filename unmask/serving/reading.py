"""A canvas as text while it fills: what is final, and what every position holds."""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor

from unmask.serving.job import Snapshot
from unmask.serving.look import Look
from unmask.serving.request import Request
from unmask.text.end_of_text import REPLACEMENT
from unmask.text.gaps import Gap
from unmask.text.generate import Prepared
from unmask.text.infill import PreparedInfill
from unmask.text.prompts import TextTokenizer, tokenizer_of
from unmask.text.stream import FinalText
from unmask.types import Step

DIGITS = 6  # of probabilities and divergences


class Reader(Protocol):
    """Reads the final text of a canvas piece by piece."""

    @property
    def sent(self) -> int:
        """Characters read so far."""
        ...

    def read(self, tokens: list[int]) -> str:
        """What the canvas adds to the pieces before."""
        ...


def reader(request: Request) -> Reader:
    """The reader of a request's canvas."""
    if isinstance(request.source, Prepared):
        return _Continued(request.source)
    return _Filled(request.source)


class _Continued:
    """Reads what follows a prompt."""

    def __init__(self, batch: Prepared) -> None:
        self._start = batch.canvas.start
        self._final = FinalText(batch.ending)

    @property
    def sent(self) -> int:
        return self._final.sent

    def read(self, tokens: list[int]) -> str:
        return self._final.read(tokens[self._start :])


class _Filled:
    """Reads a text with gaps up to the first gap that is not filled."""

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
            held = list(takewhile(lambda token: token not in self._sheet.ends, tokens[next(gaps)]))
            if self._mask_id not in held:
                text += self._decode(held)
                continue
            settled = self._decode(takewhile(lambda token: token != self._mask_id, held))
            return text + settled.rstrip(REPLACEMENT)
        return text


class Drafts:
    """What every position holds: given, final, committed, end, or masked, where the text is a guess."""

    def __init__(self, request: Request, tokenizer: TextTokenizer, eos_ids: tuple[int, ...]) -> None:
        self._given = (request.run.canvas.tokens[0] != request.run.canvas.mask_id).tolist()
        # what a prompt says is known; a text with gaps is shown as a whole
        self._start = request.run.canvas.start if isinstance(request.source, Prepared) else 0
        self._mask_id = request.run.canvas.mask_id
        self._ends = request.run.bans.ends or eos_ids
        self._text = lru_cache(maxsize=4096)(lambda token: tokenizer.decode([token]))

    def read(self, snapshot: Snapshot) -> dict[str, Any]:
        """The canvas after a step, as JSON has it."""
        positions = self._positions(snapshot)
        canvas: dict[str, Any] = {"step": snapshot.step, "positions": positions}
        if snapshot.taken is None or snapshot.look is None:
            return canvas
        step = snapshot.taken
        self._add_looks(positions, snapshot.window, step, snapshot.look)
        return {
            **canvas,
            "block": step.block,
            "forward": step.forward,
            "forced": bool(step.decision.forced[0]),
            "leftover": step.leftover,
        }

    def _positions(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Text and state of every position."""
        tokens, guess = snapshot.tokens.tolist(), snapshot.guess.tolist()
        first = int(snapshot.window.start)
        positions, behind = [], False
        for column in range(self._start, len(tokens)):
            token = tokens[column]
            state = self._state(token, column, behind)
            if state == "masked":
                behind = True
                inside = 0 <= column - first < len(guess)
                token = guess[column - first] if inside else token
            unknown = token == self._mask_id or state == "end"
            positions.append({"text": "" if unknown else self._text(token), "state": state})
        return positions

    def _add_looks(self, positions: list[dict[str, Any]], window: slice, step: Step, seen: Look) -> None:
        """What the step saw and decided, for every position that it found masked."""
        commit, eligible = step.decision.commit[0].tolist(), step.decision.eligible[0].tolist()
        numbers = {name: _plain(values) for name, values in seen.signals.items()}
        written, candidates = step.drawn[0].tolist(), seen.candidates
        for offset, column in enumerate(range(window.start, window.stop)):
            position = positions[column - self._start]
            if position["state"] != "masked" and not commit[offset]:
                continue
            position.update(
                token=written[offset],
                committed=commit[offset],
                eligible=eligible[offset],
                candidates=[[token, self._text(token), round(p, DIGITS)] for token, p in candidates[offset]],
                **{name: values[offset] for name, values in numbers.items()},
            )

    def _state(self, token: int, column: int, behind: bool) -> str:
        if self._given[column]:
            return "given"
        if token == self._mask_id:
            return "masked"
        if token in self._ends:
            return "end"
        return "committed" if behind else "final"


def _plain(values: Tensor) -> list[float | bool | None]:
    """Numbers as JSON has them; None for what is no number."""
    if values.dtype == torch.bool:
        return values.tolist()
    return [round(value, DIGITS) if isfinite(value) else None for value in values.tolist()]
