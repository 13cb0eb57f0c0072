"""A forward captured as CUDA graphs: its inputs, its layers, and where its keys and values are."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.append_cache import AppendCache
from unmask.decoding.cache import BlockCache
from unmask.fast import kernels
from unmask.fast.kv_pool import place_columns, write_pages
from unmask.models.layers import PAGE, Store, rotary
from unmask.models.trunk import Stream, Sum, Trunk
from unmask.types import BlockGrid

WARMUPS = 3  # runs before a capture, in which libraries choose kernels and allocate workspaces
# The most columns of all rows, and how many layers to launch before the host knows whether they are needed.
# Beyond 4,096 columns, the wait for the host is negligible compared with the forward.
HEAD_LAYERS = {512: 2, 4096: 1}


class GraphKey(NamedTuple):
    """The shape that a captured forward is bound to."""

    rows: int
    columns: int  # columns of the padded canvas, or of the pool of keys and values
    running: int  # number of columns that run
    padded: bool  # whether there is an `attend` mask
    keys: int  # columns of the KV store that the queries see; 0 without a store
    grid: BlockGrid | None  # part of the key because the mask is captured too
    pooled: bool = False  # whether keys and values are in the pool


class CapturedForward(ABC):
    """The layers of a model for one shape, captured in two parts: the first layers and the rest.

    Each replay overwrites the output. Without a GPU the layers run uncaptured.
    """

    store: StaticKV | None = None

    def __init__(
        self, model: Trunk, key: GraphKey, inputs: Sequence[Tensor], graph_pool: Any, *, capture: bool = True
    ) -> None:
        """Capture a forward. It keeps `inputs`, and later forwards copy their inputs into them."""
        self.model, self.key, self.inputs = model, key, inputs
        columns = key.rows * key.running
        first = next((layers for most, layers in HEAD_LAYERS.items() if columns <= most), 0)
        self.head_layers = min(first, len(model.layers) - 1)
        self.copied: Sequence[Tensor] = ()  # the tensors that all inputs but the tokens were copied from
        self.graphs = [torch.cuda.CUDAGraph() for _ in range(2)] if capture and inputs[0].is_cuda else []
        if self.graphs:
            with kernels.device_of(inputs[0]):
                self._capture(graph_pool)

    @abstractmethod
    def _enter(self) -> Stream:
        """Return the input of the first layer."""

    @abstractmethod
    def _stores(self) -> Sequence[Store | None]:
        """Return the KV store of every layer."""

    def _capture(self, graph_pool: Any) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                self._run_head()
                self._run_rest()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graphs[0], pool=graph_pool):
            self._run_head()
        with torch.cuda.graph(self.graphs[1], pool=graph_pool):
            self._run_rest()

    def _run_head(self) -> None:
        first = self.head_layers
        self.between = self.model.through(self.model.layers[:first], self._enter(), self._stores()[:first])

    def _run_rest(self) -> None:
        first = self.head_layers
        self.output = self.model.through(self.model.layers[first:], self.between, self._stores()[first:])

    def begin(self, *inputs: Tensor) -> None:
        """Copy the inputs and run the first layers."""
        tokens, *others = inputs
        self.inputs[0][:, : tokens.shape[1]].copy_(tokens)  # no query sees the other columns
        for number, new in enumerate(others):
            if not self.copied or new is not self.copied[number]:
                self.inputs[1 + number][tuple(map(slice, new.shape))].copy_(new)
        self.copied = others
        if self.graphs:
            self.graphs[0].replay()
        else:
            self._run_head()

    def run(self, *inputs: Tensor) -> Sum:
        """Run all layers."""
        self.begin(*inputs)
        return self.finish()

    @torch.no_grad()
    def finish(self) -> Sum:
        """Run the remaining layers."""
        if self.graphs:
            self.graphs[1].replay()
        else:
            self._run_rest()
        return self.output.x, self.output.change


class CanvasForward(CapturedForward):
    """A forward over columns of a canvas.

    The inputs are the tokens, the numbers of the columns, and either the mask of real columns or the
    rotations.
    """

    def __init__(
        self, model: Trunk, key: GraphKey, store: StaticKV | None, inputs: Sequence[Tensor], graph_pool: Any
    ) -> None:
        self.store = store
        tokens, *others = inputs
        padded = F.pad(tokens, (0, key.columns - tokens.shape[1]))
        super().__init__(model, key, [padded, *(each.clone() for each in others)], graph_pool)

    def _enter(self) -> Stream:
        tokens, index, *others = self.inputs
        attend = others[0] if self.key.padded else None
        rope = self.model.rope(tokens, attend, index) if self.key.padded else (others[0], others[1])
        return self.model.enter(tokens[:, index], rope, self.model.mask(tokens, attend, index))

    def _stores(self) -> Sequence[Store | None]:
        if self.store is None:
            return [None] * len(self.model.layers)
        index, seen = self.inputs[1], self.key.keys
        return [partial(write_columns, keys, values, index, seen) for keys, values in self.store.layers]


class PooledForward(CapturedForward):
    """A forward over the last columns of rows whose keys and values are in the pool.

    The inputs are the tokens of these columns, the number of columns of each row that are not padding, and
    the rows' table from `KVPool.table`.
    """

    def __init__(
        self,
        model: Trunk,
        key: GraphKey,
        layers: Sequence[tuple[Tensor, Tensor]],
        inputs: Sequence[Tensor],
        graph_pool: Any,
        *,
        capture: bool = True,
    ) -> None:
        self.layers = layers
        tokens, counts, table = inputs
        own = tokens.clone(memory_format=torch.contiguous_format)
        wide = F.pad(table, (0, 2 + key.keys // PAGE - table.shape[1]))  # no query sees the added pages
        super().__init__(model, key, [own, counts.clone(), wide], graph_pool, capture=capture)
        if self.graphs:
            del self.between  # let other graphs use its memory, as nothing runs between the parts

    def _enter(self) -> Stream:
        tokens, counts, table = self.inputs
        assert self.key.grid is not None, "only models that attend in blocks have such caches"
        placed = place_columns(table, counts, self.key.running, self.key.grid)
        self.writes = placed.writes
        shape = self.model.shape
        rope = rotary(placed.positions, shape.rotary_size, shape.rope_theta)
        return self.model.enter(tokens, rope, placed.pages)

    def _stores(self) -> Sequence[Store | None]:
        return [partial(write_pages, keys, values, self.writes) for keys, values in self.layers]


@dataclass(slots=True)
class StaticKV:
    """Keys and values of every layer, [B, H, N, D] each, at the addresses that graphs are bound to."""

    layers: list[tuple[Tensor, Tensor]]
    owner: weakref.ref[BlockCache | AppendCache] | None = None  # the last cache that used this store
    lent: dict[int, tuple[Tensor, Tensor]] | None = None  # the owner's `stored` while it uses this

    @staticmethod
    def empty(model: Trunk, rows: int, width: int) -> StaticKV:
        shape, weight = model.shape, model.norm.weight
        size = rows, shape.key_heads, width, shape.head_size
        return StaticKV([(weight.new_zeros(size), weight.new_zeros(size)) for _ in range(shape.layers)])

    def hold(self, cache: BlockCache | AppendCache, n: int, *, load: int) -> None:
        """Make this the store of a cache of `n` columns. If it is not yet, copy its first `load` columns."""
        if cache.stored is self.lent and cache.stored[0][0].shape[2] == n:
            return
        self.release()
        for layer, sides in enumerate(self.layers):
            for number, side in enumerate(sides):
                side.zero_()  # masked columns weigh zero, but zero times NaN is NaN
                if load:
                    stored = cache.stored[layer][number]
                    if len(stored) != len(side):
                        count = f"the cache holds {len(stored)} rows and the batch has {len(side)}"
                        raise ValueError(f"{count}; call start_block first")
                    side[:, :, :load] = stored[:, :, :load]
        self.lent = cache.stored = {
            layer: (keys[:, :, :n], values[:, :, :n]) for layer, (keys, values) in enumerate(self.layers)
        }
        self.owner = weakref.ref(cache)

    def release(self) -> None:
        """Give the owner a copy of its keys and values, and forget the owner."""
        owner = None if self.owner is None else self.owner()
        if owner is not None and owner.stored is self.lent:
            owner.stored = {layer: (k.clone(), v.clone()) for layer, (k, v) in owner.stored.items()}
        self.owner = self.lent = None


def write_columns(
    keys: Tensor, values: Tensor, columns: Tensor, seen: int, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the keys and values of the columns that ran, and return those that the queries see."""
    keys.index_copy_(2, columns, k)
    values.index_copy_(2, columns, v)
    return keys[:, :, :seen], values[:, :, :seen]
