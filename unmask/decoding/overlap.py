"""Overlapping blocks: the next block opens before the last one is full (d3LLM, its training-free part)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class OpenBlocks:
    """How many blocks of each row are open. At most one more opens per step.

    The next block opens when a share `at` of the last open one is filled.
    """

    def __init__(self, blocks: Sequence[slice], at: float, rows: int, device: torch.device) -> None:
        self.at = at
        self.sizes = torch.tensor([block.stop - block.start for block in blocks], device=device)
        # the number of each column's block
        self.number = torch.arange(len(blocks), device=device).repeat_interleave(self.sizes)
        opened = 1 if at > 0 or len(blocks) == 1 else 2  # at 0, an empty block opens the next one
        self.opened = torch.full((rows,), opened, device=device)

    def advance(self, masked: Tensor) -> None:
        """Open the next block of every row whose last open block is filled enough, given the masks [B, W]."""
        masks = torch.zeros(len(masked), len(self.sizes), dtype=torch.long, device=masked.device)
        masks = masks.index_add(1, self.number, masked.long())
        share = (1 - masks / self.sizes).gather(1, self.opened[:, None] - 1)[:, 0]
        self.opened = (self.opened + (share >= self.at)).clamp(max=len(self.sizes))

    def inside(self, masked: Tensor) -> Tensor:
        """Return the columns of open blocks, [B, W] bool; the first block with a mask is always open."""
        return self.number < torch.maximum(self.opened, 1 + self._first(masked))[:, None]

    def urgent(self, masked: Tensor) -> Tensor:
        """Return the columns of the first block with a mask, [B, W] bool: it must progress in every step."""
        return self.number == self._first(masked)[:, None]

    def _first(self, masked: Tensor) -> Tensor:
        """Return the number of the first block with a mask, [B]."""
        return self.number[masked.int().argmax(-1)]
