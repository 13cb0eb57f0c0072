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

REPLACEMENT = "\ufffd"  # an incomplete character decodes to this


class Text(NamedTuple):
    """A finished text, the tokens that hold it, and why it ended."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish


@dataclass(frozen=True, slots=True)
class Ending:
    """How to read a row's generated tokens."""

    tokenizer: TextTokenizer | None  # None: texts are empty, and stop strings are refused
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
        """Return the text of the tokens, empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.decode(ids)

    def final_ids(self, generated: Sequence[int]) -> list[int]:
        """Return the tokens before the first mask or end token; no later step can change them."""
        ends = (self.mask_id, *self.eos_ids)
        return list(takewhile(lambda token: token not in ends, generated))

    def final_text(self, ids: Sequence[int]) -> str:
        """Return the text of final tokens, without a last character that may still be incomplete."""
        return self.decode(ids).rstrip(REPLACEMENT)

    def first_stop(self, text: str) -> int | None:
        """Return the offset of the earliest stop string, or None if there is none."""
        offsets = [text.find(stop) for stop in self.stop]
        return min((at for at in offsets if at >= 0), default=None)

    def sendable(self, text: str) -> int:
        """Return how many characters of a final text cannot become part of a stop string."""
        at = self.first_stop(text)
        if at is not None:
            return at
        starts = (
            length for stop in self.stop for length in range(1, len(stop)) if text.endswith(stop[:length])
        )
        return len(text) - max(starts, default=0)

    def read(self, generated: Sequence[int]) -> Text:
        """Return the text of a finished row."""
        ids = self.final_ids(generated)
        text = self.decode(ids)
        at = self.first_stop(text)
        if at is not None:
            return Text(text[:at], tuple(ids[: self._covering(ids, at)]), "stop")
        ended = len(ids) < len(generated) and generated[len(ids)] in self.eos_ids
        return Text(text, tuple(ids), "eos" if ended else "length")

    def _covering(self, ids: Sequence[int], characters: int) -> int:
        """Return how many tokens spell the first `characters` characters."""
        return bisect_left(range(len(ids)), characters, key=lambda count: len(self.final_text(ids[:count])))


class StopWatch:
    """Finds the rows whose final text holds a stop string; the loop calls it after every step."""

    def __init__(self, ending: Ending, starts: Sequence[int]) -> None:
        self._ending = ending
        self._starts = starts  # the first generated column of each row
        self._read = [0] * len(starts)  # number of final tokens read so far
        self._stopped = [False] * len(starts)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the rows that have stopped, [B, N] -> [B] bool."""
        for row, (line, start) in enumerate(zip(tokens.tolist(), self._starts, strict=True)):
            ids = self._ending.final_ids(line[start:])
            if len(ids) > self._read[row]:
                self._read[row] = len(ids)
                self._stopped[row] = self._ending.first_stop(self._ending.final_text(ids)) is not None
        return torch.tensor(self._stopped, device=tokens.device)
