"""Reachable sets of all columns from a few matrix products, for a GPU.

A loop over the columns launches thousands of small kernels. A tree launches a few for each of its levels. On
the way up, the matrices of neighbours are multiplied. On the way down, each half gets its set from the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_NUMBERS = 1 << 26  # most numbers in the matrices of all columns; the tree takes six bytes for each
UNIT = 16  # matrices are fast on tensor cores if their size is a multiple of this


class Tree:
    """The products of the matrices of neighbouring columns: pairs, fours, and so on up to all of them."""

    def __init__(self, columns: Tensor) -> None:
        """Build the tree of one matrix of zeros and ones for each column, [B, W, S, S]."""
        self.width, self.states = columns.shape[1:3]
        more = -self.states % UNIT
        self.levels = [torch.nn.functional.pad(columns, (0, more, 0, more))]
        while self.levels[-1].shape[1] > 1:
            level = self.levels[-1]
            if level.shape[1] % 2:
                nothing = torch.eye(level.shape[-1], dtype=level.dtype, device=level.device)
                nothing = nothing.expand(len(level), 1, -1, -1)
                self.levels[-1] = level = torch.cat([level, nothing], dim=1)
            self.levels.append((level[:, 0::2] @ level[:, 1::2]).clamp_(max=1))

    def forward(self, sets: Tensor) -> Tensor:
        """Return the states before and after each column, [B, W + 1, S], from those before the first."""
        first = self._pad(sets)
        before = first
        for level in reversed(self.levels[:-1]):
            left = before[:, : level.shape[1] // 2]
            right = (left[:, :, None] @ level[:, 0::2])[:, :, 0].clamp_(max=1)
            before = torch.stack([left, right], dim=2).flatten(1, 2)
        behind = self.behind(first)
        return torch.cat([before[:, : self.width], behind], dim=1)[..., : self.states]

    def backward(self, sets: Tensor) -> Tensor:
        """Return the states before and after each column, [B, W + 1, S], from those after the last."""
        last = self._pad(sets)
        behind = last
        for level in reversed(self.levels[:-1]):
            right = behind[:, : level.shape[1] // 2]
            left = (level[:, 1::2] @ right[..., None])[..., 0].clamp_(max=1)
            behind = torch.stack([left, right], dim=2).flatten(1, 2)
        before = (self.levels[-1] @ last[..., None])[..., 0].clamp_(max=1)
        return torch.cat([before, behind[:, : self.width]], dim=1)[..., : self.states]

    def end(self, sets: Tensor) -> Tensor:
        """Return the states after the last column, [B, S], from those before the first."""
        return self.behind(self._pad(sets))[:, 0, : self.states]

    def behind(self, first: Tensor) -> Tensor:
        return (first[:, :, None] @ self.levels[-1])[:, :, 0].clamp_(max=1)

    def _pad(self, sets: Tensor) -> Tensor:
        """Return sets [B, S] as [B, 1, S'], with the dtype and the size of the matrices."""
        more = self.levels[0].shape[-1] - self.states
        return torch.nn.functional.pad(sets.to(self.levels[0].dtype), (0, more))[:, None]
