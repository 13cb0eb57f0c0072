"""The exact cache of models that attend block by block: a finished block is never run again."""

from __future__ import annotations

from torch import Tensor

from unmask.errors import whole

GROWTH = 256  # columns by which the stored tensors grow


class AppendCache:
    """Keys and values of a canvas that is decoded block by block.

    A column sees its own block and those before, so the keys and values of a finished block never change. The
    first forward of a block also runs the block before it, with its final tokens, and keeps its keys and
    values; in the first block of a generation it also runs the prompt. Every later forward runs the block
    alone.
    """

    persistent = True  # its rows stay from block to block

    def __init__(self, block_length: int) -> None:
        whole("block_length", block_length, 1)
        self.block_length = block_length  # of the model's attention; a planned block may be a part of one
        self.final = 0  # columns whose stored keys and values never change
        self.block = slice(0, 0)  # the block of the attention that is decoded now
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys and values, [B, H, capacity, D]

    def start_block(self, block: slice) -> None:
        """Start to decode these columns; all blocks before theirs are finished."""
        first = block.start // self.block_length * self.block_length
        if block.stop > first + self.block_length:
            raise ValueError(
                f"columns {block.start} to {block.stop} cross a block of the attention, "
                f"{self.block_length} columns long; plan blocks of a length that divides it"
            )
        self.block = slice(first, first + self.block_length)

    def keep(self, rows: Tensor) -> None:
        """Keep some rows."""
        self.stored = {layer: (k[rows], v[rows]) for layer, (k, v) in self.stored.items()}

    def columns(self, need: slice, n: int) -> slice:
        """Return the columns to run: those of the block, and those before that are not final yet."""
        # a model whose hidden state i predicts column i + 1 asks for one column before the block
        return slice(min(self.final, need.start), min(self.block.stop, n))

    def ran(self, columns: slice) -> None:
        """Take note of a forward: all columns before the block are final."""
        self.final = self.block.start

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the columns that ran; return those of all columns up to them."""
        keys, values = self._with_room(layer, columns.stop, k)
        keys[:, :, columns] = k
        values[:, :, columns] = v
        return keys[:, :, : columns.stop], values[:, :, : columns.stop]

    def _with_room(self, layer: int, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored tensors of a layer, with room for so many columns."""
        stored = self.stored.get(layer)
        if stored is not None and stored[0].shape[2] >= length:
            return stored
        rows, heads, _, size = like.shape
        room = -(-length // GROWTH) * GROWTH
        larger = like.new_empty(2, rows, heads, room, size)
        if stored is not None:
            for side, old in zip(larger, stored, strict=True):
                side[:, :, : old.shape[2]] = old
        self.stored[layer] = larger[0], larger[1]
        return self.stored[layer]
