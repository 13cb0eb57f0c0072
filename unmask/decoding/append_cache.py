"""The exact cache of models that attend block by block: a finished block is never run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from unmask.errors import FieldError, whole

GROWTH = 256  # columns by which the stored tensors grow


class AppendCache:
    """Keys and values of a canvas that is decoded block by block.

    A column sees its own block and the blocks before it, so the keys and values of a finished block never
    change. The first forward of a block also runs the block before it, with its final tokens, and keeps its
    keys and values. In the first block of a generation it also runs the prompt. Every later forward runs only
    the block.

    With `sub_block`, only this many columns of the block run after a first forward of the whole block. The
    whole block runs again as long as the first of these columns is masked. This is the approximate cache that
    Fast-dLLM v2 uses inside a block.
    """

    persistent = True  # its rows stay from block to block

    def __init__(self, block_length: int, *, sub_block: int | None = None) -> None:
        whole("block_length", block_length, 1)
        self.block_length = block_length  # columns of an attention block; a planned block may be a part of it
        self.sub_block = sub_block
        self.final = 0  # columns whose stored keys and values never change
        self.block = slice(0, 0)  # the attention block that is decoded now
        self.narrow = slice(0, 0)  # the sub-block that is decoded now
        self.whole = True  # the next forward runs the whole block
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys and values, [B, H, capacity, D]

    def start_block(self, block: slice) -> None:
        """Start to decode these columns; all earlier blocks are finished."""
        self.block = self._around(block, self.block_length)
        self.narrow = self.block if self.sub_block is None else self._around(block, self.sub_block)
        self.whole = True

    def _around(self, block: slice, length: int) -> slice:
        first = block.start // length * length
        if block.stop > first + length:
            problem = f"must divide {length}, the length of the blocks that the cache knows"
            raise FieldError("block_length", block.stop - block.start, problem)
        return slice(first, first + length)

    def keep(self, rows: Tensor) -> None:
        """Keep only the rows with these numbers."""
        self.stored = {layer: (k[rows], v[rows]) for layer, (k, v) in self.stored.items()}

    def note_masks(self, window: slice, masked: Tensor) -> None:
        """Run the whole block if the first column of a sub-block is masked in any row."""
        if self.sub_block is not None and window.start == self.narrow.start:
            self.whole |= bool(masked[:, 0].any())

    def columns(self, need: slice, n: int) -> slice:
        """Return the columns to run: those of the block, and earlier ones that are not final yet."""
        # a model whose hidden state i predicts column i + 1 asks for one more column on the left
        if self.whole or self.sub_block is None:
            return slice(min(self.final, need.start), min(self.block.stop, n))
        return slice(min(self.narrow.start, need.start), min(self.narrow.stop, n))

    def is_short(self, width: int) -> bool:
        """Return whether a forward this wide runs at most two blocks; that of a prompt usually runs more."""
        return width <= 2 * self.block_length

    def ran(self, columns: slice) -> None:
        """Record a forward: all columns before the block are now final."""
        self.final, self.whole = self.block.start, False

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the columns that ran; return all up to the end of the block."""
        first = self.final if self.whole or self.sub_block is None else self.narrow.start
        first = max(first, columns.start)
        keys, values = self._with_room(layer, columns.stop, k)
        keys[:, :, first : columns.stop] = k[:, :, first - columns.start :]
        values[:, :, first : columns.stop] = v[:, :, first - columns.start :]
        end = columns.stop if self.whole or self.sub_block is None else self.block.stop
        return keys[:, :, :end], values[:, :, :end]

    def _with_room(self, layer: int, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored tensors of a layer, with room for this many columns."""
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


class SideBySide:
    """The caches of several rows as one, for a forward in which all rows end in the same column.

    A row that is shorter than the batch is shifted to the right, so its columns in the batch are not those in
    its cache. Every row runs as many columns as the one that needs the most. Columns that are final or left
    of the row are not stored. With guidance every row runs twice, and its cache has two rows.
    """

    persistent = True

    def __init__(self, parts: Sequence[tuple[AppendCache, int]], running: int = 0) -> None:
        """Join caches, each given with the column where its row ends. Run at least `running` columns."""
        self.parts = parts
        self.running = running
        self.length = max(running, *(length for _, length in parts))  # columns of the batch

    def start_block(self, block: slice) -> None:
        raise NotImplementedError("each row's cache starts its own block")

    def keep(self, rows: Tensor) -> None:
        raise NotImplementedError("each row keeps its own cache")

    def note_masks(self, window: slice, masked: Tensor) -> None:
        raise NotImplementedError("each row's cache takes note of its own masks")

    def columns(self, need: slice, n: int) -> slice:
        """Return the columns to run."""
        own = [
            (cache.columns(slice(need.start - shift, need.stop - shift), self.length - shift), shift)
            for cache, shift in self._shifts()
        ]
        start = min(part.start + shift for part, shift in own)
        stop = max(part.stop + shift for part, shift in own)
        return slice(min(start, stop - self.running), stop)

    def ran(self, columns: slice) -> None:
        """Record a forward in every row's cache."""
        for cache, shift in self._shifts():
            cache.ran(slice(columns.start - shift, columns.stop - shift))

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store each row's columns in its cache; return the keys and values of all rows."""
        count, size = len(self.parts), (*k.shape[:2], columns.stop, k.shape[3])
        keys, values = k.new_zeros(size), v.new_zeros(size)
        for row, (cache, shift) in enumerate(self._shifts()):
            own = slice(columns.start - shift, columns.stop - shift)
            stored = cache.update(layer, own, k[row::count], v[row::count])
            keys[row::count, :, shift:], values[row::count, :, shift:] = stored
        return keys, values

    def _shifts(self) -> Iterator[tuple[AppendCache, int]]:
        for cache, length in self.parts:
            yield cache, self.length - length
