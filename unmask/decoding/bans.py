"""Which token may not stand in which column: one value for every reason there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.decoding.summary import ban


@dataclass(frozen=True, slots=True)
class Bans:
    """Tokens without a chance: `ids` in every column, `ends` in the `closed` ones, where no text may end.

    Attributes:
        ids: Tokens that no column may take.
        ends: Tokens that closed columns may not take.
        closed: [1 or B, N] bool, of all columns of a canvas or of a window; None: no column is closed.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...] = ()
    closed: Tensor | None = None

    def within(self, window: slice) -> Bans:
        """Return the bans of some columns."""
        return self if self.closed is None else replace(self, closed=self.closed[:, window])

    def take(self, rows: Tensor | slice) -> Bans:
        """Return the bans of some rows."""
        if self.closed is None or len(self.closed) == 1:
            return self
        return replace(self, closed=self.closed[rows])

    def repeat(self, copies: int) -> Bans:
        """Return the bans of rows that are each repeated in place."""
        if self.closed is None or len(self.closed) == 1:
            return self
        return replace(self, closed=self.closed.repeat_interleave(copies, dim=0))

    def to(self, device: torch.device | str) -> Bans:
        """Return the same bans on another device."""
        return self if self.closed is None else replace(self, closed=self.closed.to(device))

    @staticmethod
    def join(parts: Sequence[Bans]) -> Bans:
        """Stack the bans of several rows, which name the same tokens and have the same width."""
        closed = [part.closed for part in parts if part.closed is not None]
        return replace(parts[0], closed=torch.cat(closed)) if closed else parts[0]

    def apply(self, logits: Tensor) -> Tensor:
        """Set the logits [B, W, V] of banned tokens to -inf, in place."""
        ban(logits, self.ids)
        if self.closed is not None:
            for token in self.ends:
                logits[..., token].masked_fill_(self.closed, -torch.inf)
        return logits
