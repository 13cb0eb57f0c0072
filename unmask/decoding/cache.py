"""Keys and values kept between forwards. Independent of models and samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.errors import one_of, whole

Recompute = Literal["suffix", "block"]


class BlockCache:
    """Keep the keys and values of columns outside the block: the block caches of Fast-dLLM.

    Use it with `decode` to save work on long canvases. It is an approximation, because the keys and values of
    kept columns are not updated (arXiv:2505.22618). `generate` makes one if the configuration names a cache.

    The first forward of a block runs every column.

    Attributes:
        recompute: The columns that run in every step: "suffix" (the block and all after it, the prefix cache)
            or "block" (the block alone, the dual cache).
        refresh_every: Run all columns in every n-th forward of a block, >= 1. None means only in its first.
    """

    persistent = False

    def __init__(self, recompute: Recompute = "suffix", *, refresh_every: int | None = None) -> None:
        one_of("recompute", recompute, get_args(Recompute))
        if refresh_every is not None:
            whole("refresh_every", refresh_every, 1)
        self.recompute = recompute
        self.refresh_every = refresh_every
        self._block: slice | None = None
        self._age = 0  # forwards since the last full one, this one included; 0 before the first of a block
        self._length = 0  # columns of the canvas
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys and values, [B, H, N, D]

    @property
    def state(self) -> tuple[object, ...]:
        """The state of the cache. Caches with equal states can be joined."""
        block = None if self._block is None else (self._block.start, self._block.stop)
        return self.recompute, self.refresh_every, block, self._age, self._length

    @property
    def rows(self) -> int:
        """The number of stored rows; 0 before the first forward of a block."""
        return len(self.stored[0][0]) if self._age and self.stored else 0

    @staticmethod
    def join(parts: Sequence[tuple[BlockCache, int]]) -> BlockCache:
        """Copy some rows of caches in the same state into one cache."""
        first = parts[0][0]
        joined = BlockCache(first.recompute, refresh_every=first.refresh_every)
        joined._block, joined._age, joined._length = first._block, first._age, first._length
        if not first._outdated:
            for layer in first.stored:
                rows = [[side[row : row + 1] for side in cache.stored[layer]] for cache, row in parts]
                keys, values = (torch.cat(side) for side in zip(*rows, strict=True))
                joined.stored[layer] = keys, values
        return joined

    def start_block(self, block: slice) -> None:
        """Start to decode these columns; the next forward runs the whole canvas."""
        self._block, self._age = block, 0

    def note_masks(self, window: slice, masked: Tensor) -> None:
        """Do nothing: masks do not change which columns run."""

    def keep(self, rows: Tensor) -> None:
        """Do nothing: the first forward of a block stores all rows again."""

    @property
    def _outdated(self) -> bool:
        return self._age == 0 or self._age == self.refresh_every

    def columns(self, need: slice, n: int) -> slice:
        """Return the columns that the model must run to predict `need`, on a canvas of n columns."""
        if self._block is None:
            raise ValueError("the cache has no block yet; call start_block before the first forward")
        if self._outdated:
            return slice(0, n)
        if n != self._length:
            raise ValueError(f"the canvas had {self._length} columns and now has {n}; call start_block first")
        return self._recomputed(need, self._block)

    def ran(self, columns: slice) -> None:
        """Count a forward of these columns."""
        if self._outdated:
            self._age, self._length = 1, columns.stop
        else:
            self._age += 1

    def _recomputed(self, need: slice, block: slice) -> slice:
        if self.recompute == "suffix":
            return slice(min(need.start, block.start), self._length)
        # a model whose hidden state i predicts column i + 1 asks for one column before the block
        if need.start < block.start - 1 or need.stop > block.stop:
            raise ValueError(
                f"columns {need.start} to {need.stop} reach outside the block {block.start} to {block.stop}; "
                "use cache=None or BlockCache(recompute='suffix')"
            )
        return slice(min(need.start, block.start), block.stop)

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the columns that ran. Return those of the whole canvas."""
        if self._outdated:
            self.stored[layer] = k, v
            return k, v
        keys, values = self.stored[layer]
        if keys.shape[0] != k.shape[0]:
            raise ValueError(
                f"the cache holds {keys.shape[0]} rows and the batch has {k.shape[0]}; call start_block first"
            )
        keys[:, :, columns] = k
        values[:, :, columns] = v
        return keys, values
