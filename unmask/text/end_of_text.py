"""Where a text ends: at its first end token or before its earliest stop string."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.result import Finish
from unmask.text.prompts import TextTokenizer

REPLACEMENT = "\ufffd"  # what an incomplete character decodes to


class Text(NamedTuple):
    """A finished text, the tokens that hold it, and why it ended."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish


@dataclass(frozen=True, slots=True)
class Ending:
    """How to read a row's generated tokens."""

    tokenizer: TextTokenizer | None  # None: texts are empty, and there may be no stop strings
    mask_id: int
    eos_ids: tuple[int, ...]
    stop: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.stop and self.tokenizer is None:
            raise ValueError(
                f"stop must be empty for a model without a tokenizer, got {self.stop!r}; "
                "set model.tokenizer, or look for the tokens in Generation.token_ids"
            )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(ids)

    def final_ids(self, generated: Sequence[int]) -> list[int]:
        """The tokens that no later step can change or cut off: up to the first mask or end token."""
        ends = (self.mask_id, *self.eos_ids)
        return list(takewhile(lambda token: token not in ends, generated))

    def final_text(self, ids: Sequence[int]) -> str:
        """The text of final tokens as far as the tokens behind them cannot change it."""
        return self.decode(ids).rstrip(REPLACEMENT)

    def first_stop(self, text: str) -> int | None:
        """Where the earliest stop string begins."""
        found = [text.find(stop) for stop in self.stop]
        return min((at for at in found if at >= 0), default=None)

    def sendable(self, text: str) -> int:
        """How many characters of a final text no stop string can take back."""
        at = self.first_stop(text)
        if at is not None:
            return at
        starts = (
            length for stop in self.stop for length in range(1, len(stop)) if text.endswith(stop[:length])
        )
        return len(text) - max(starts, default=0)

    def read(self, generated: Sequence[int]) -> Text:
        """The text of a row that is done."""
        ids = self.final_ids(generated)
        text = self.decode(ids)
        at = self.first_stop(text)
        if at is not None:
            return Text(text[:at], tuple(ids[: self._covering(ids, at)]), "stop")
        ended = len(ids) < len(generated) and generated[len(ids)] in self.eos_ids
        return Text(text, tuple(ids), "eos" if ended else "length")

    def _covering(self, ids: Sequence[int], characters: int) -> int:
        """How many tokens hold the first characters."""
        return bisect_left(range(len(ids)), characters, key=lambda count: len(self.final_text(ids[:count])))


class StopWatch:
    """Says which rows have a stop string in their final text; for the loop's `done`."""

    def __init__(self, ending: Ending, start: int, rows: int) -> None:
        self._ending = ending
        self._start = start
        self._read = [0] * rows  # final tokens that were read
        self._stopped = [False] * rows

    def __call__(self, tokens: Tensor) -> Tensor:
        """[B, N] -> [B] bool."""
        for row, generated in enumerate(tokens[:, self._start :].tolist()):
            ids = self._ending.final_ids(generated)
            if len(ids) > self._read[row]:
                self._read[row] = len(ids)
                self._stopped[row] = self._ending.first_stop(self._ending.final_text(ids)) is not None
        return torch.tensor(self._stopped, device=tokens.device)
