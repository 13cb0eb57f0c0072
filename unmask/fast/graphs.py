"""CUDA graphs of a model's layers: captured once per shape, replayed for every forward.

A forward of an 8B model is some thousand kernels; launched one by one they leave the GPU waiting. A graph
launches them all at once. It is bound to its shapes and to its memory, so there is one graph per shape,
canvases are padded to a multiple of `bucket` columns to need few of them, and the graphs hold the keys and
values of a run themselves. Without a GPU everything here runs too, only uncaptured.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.append_cache import AppendCache
from unmask.decoding.cache import BlockCache
from unmask.fast import kernels
from unmask.models.layers import Rope, Store
from unmask.models.trunk import Sum, Trunk
from unmask.types import BlockGrid, Cache

WARMUPS = 3  # runs before a capture, in which libraries choose kernels and allocate workspaces
# layers launched before the host knows whether they are needed, by the most columns of all rows: beyond 4,096
# the wait for the host is negligible beside the forward
HEAD_LAYERS = {512: 2, 4096: 1}
MIN_KEYS = 512  # columns that a forward with an AppendCache sees; more of them in powers of two
MAX_SHAPES = 256  # compiled variants of a layer and of a decision
MAX_FIXED = 64  # inputs kept for the next forward of the same columns; the rotations of 4,096 take 2 MB
Fixed = TypeVar("Fixed", Tensor, Rope)


class GraphKey(NamedTuple):
    """The shape that a captured forward is bound to."""

    rows: int
    columns: int  # of the padded canvas
    running: int  # columns that run
    padded: bool  # has an `attend`
    keys: int  # columns of a KV store that the queries see; 0: no store
    grid: BlockGrid | None  # the mask is captured too


class Pending:
    """A forward whose first layers are under way."""

    def __init__(self, finish: Callable[[], Tensor]) -> None:
        self._finish = finish

    def result(self) -> Tensor:
        """Run the other layers and return the hidden states of the window, [B, W, D]."""
        return self._finish()


class GraphRunner:
    """Runs the layers of a trunk through captured graphs."""

    def __init__(self, model: Trunk, bucket: int, max_graphs: int) -> None:
        self.model = model
        self.bucket = bucket
        self.max_graphs = max_graphs
        self.captured: OrderedDict[GraphKey, CapturedForward] = OrderedDict()
        self.stores: dict[tuple[int, int], StaticKV] = {}  # graphs are bound to the memory of these
        self.fixed: dict[tuple[str | int, ...], Any] = {}  # inputs that depend on nothing but their size
        self.pool: Any = None  # graphs run one after another, so they share their intermediate memory
        self.submitted = 0  # forwards begun early
        self.finished = 0  # of those, the ones whose result was used
        self._open: object = None  # the forward whose inputs are in place

    @torch.no_grad()
    def run(self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None) -> Sum:
        """Run all layers on some columns, as `Trunk.run_layers` does."""
        if not captures(cache, self.model.info.grid, columns):
            with self.model.uncompiled():
                return self.model.run_layers(tokens, attend, columns, cache)
        return self._begin(tokens, attend, columns, cache)()

    @torch.no_grad()
    def submit(
        self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None
    ) -> Pending | None:
        """Start the first layers of a forward and return a handle to finish it. Dropping it costs nothing.

        Return None if the forward cannot be captured.
        """
        model, need = self.model, self.model.predicting(window)
        columns = model.columns(tokens, need, cache)
        if not captures(cache, model.info.grid, columns):
            return None
        rest = self._begin(tokens, attend, columns, cache)
        self.submitted += 1

        @torch.no_grad()
        def finish() -> Tensor:
            self.finished += 1
            stream = rest()
            if cache is not None:
                cache.ran(columns)
            return model.align(model.norm_states(stream, columns, need), attend, window)

        return Pending(finish)

    def _begin(
        self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None
    ) -> Callable[[], Sum]:
        """Run the first layers; the function returned runs the others."""
        allow_shapes()
        rows, n = tokens.shape
        width = -(-n // self.bucket) * self.bucket
        store = None if cache is None else self._store(cache, rows, n, width, columns)
        # on a grid, a forward without a cache stops behind its block; multiples of `bucket` need few graphs
        ends = min(width, -(-columns.stop // self.bucket) * self.bucket)
        appends = isinstance(cache, AppendCache)
        whole = cache is None or (columns == slice(0, n) and not appends)
        running = slice(0, ends) if whole else columns
        keys = 0 if cache is None else seen_columns(running.stop, width) if appends else width
        index = self._index(running, tokens.device)
        real = self._attend(attend, tokens, width)
        key = GraphKey(rows, width, len(index), real is not None, keys, self.model.info.grid)
        # without padding, rotations depend on the columns alone
        inputs = (tokens, index, *(self._rope(tokens, running) if real is None else (real,)))
        self._open = None  # a forward that was begun before may lose its inputs
        captured = self._captured(key, store, inputs)
        captured.begin(*inputs)
        opened = self._open = object()

        def finish() -> Sum:
            if self._open is not opened:  # another forward took the inputs' place, and perhaps the KV store
                return self.run(tokens, attend, columns, cache)
            x, change = captured.finish()
            real = slice(0, columns.stop - columns.start)
            return x[:, real], change[..., real, :]

        return finish

    def _index(self, columns: slice, device: torch.device) -> Tensor:
        """Return the columns as numbers."""
        place = columns.start, columns.stop
        return self._same(("index", *place), lambda: torch.arange(*place, device=device))

    def _rope(self, tokens: Tensor, columns: slice) -> Rope:
        """Return the rotations of columns where nothing is padding."""
        place = columns.start, columns.stop
        return self._same(("rope", *place), lambda: self.model.rope(tokens, None, columns))

    def _attend(self, attend: Tensor | None, tokens: Tensor, width: int) -> Tensor | None:
        """Mark the real columns of the padded canvas; padding on the right moves no column."""
        rows, n = tokens.shape
        if attend is not None:
            return F.pad(attend, (0, width - n))
        if n == width:
            return None
        ones = partial(torch.ones, rows, n, dtype=torch.bool, device=tokens.device)
        return self._same(("real", rows, n, width), lambda: F.pad(ones(), (0, width - n)))

    def _same(self, key: tuple[str | int, ...], make: Callable[[], Fixed]) -> Fixed:
        """Return the same tensors for the same key, so that a graph that has them need not copy them."""
        if key not in self.fixed:
            if len(self.fixed) >= MAX_FIXED:
                self.fixed.clear()
            self.fixed[key] = make()
        same: Fixed = self.fixed[key]
        return same

    def _store(self, cache: Cache, rows: int, n: int, width: int, columns: slice) -> StaticKV:
        """Return the KV store of a shape, holding the keys and values of this cache."""
        assert isinstance(cache, BlockCache | AppendCache), "captures() lets no other cache pass"
        store = self.stores.get((rows, width))
        if store is None:
            store = self.stores[rows, width] = StaticKV.empty(self.model, rows, width)
        if isinstance(cache, AppendCache):
            store.hold(cache, width, load=cache.final)
        else:
            store.hold(cache, n, load=0 if columns == slice(0, n) else n)
        return store

    def _captured(self, key: GraphKey, store: StaticKV | None, inputs: Sequence[Tensor]) -> CapturedForward:
        if key not in self.captured:
            while len(self.captured) >= self.max_graphs:
                self._evict(keep=store)
            if not self.captured:  # the old pool went with the last graph that used it
                self.pool = torch.cuda.graph_pool_handle() if inputs[0].is_cuda else None
            self.captured[key] = CapturedForward(self.model, key, store, inputs, self.pool)
        self.captured.move_to_end(key)
        return self.captured[key]

    def clear(self) -> None:
        """Give all graphs back, and their memory; each is captured again when it is needed."""
        while self.captured:
            self._evict(keep=None)
        self.fixed.clear()

    def _evict(self, keep: StaticKV | None) -> None:
        """Drop the graph that was used longest ago, and its KV store if it is neither used nor to be kept."""
        key, captured = self.captured.popitem(last=False)
        used = any(other.store is captured.store for other in self.captured.values())
        if captured.store is not None and captured.store is not keep and not used:
            self.stores.pop((key.rows, key.columns)).release()


class CapturedForward:
    """The layers of a model for one shape, captured in two parts: the first layers and the others.

    A replay overwrites the output. Without a GPU the layers run as they are.
    """

    def __init__(
        self, model: Trunk, key: GraphKey, store: StaticKV | None, inputs: Sequence[Tensor], pool: Any
    ) -> None:
        self.model, self.key, self.store = model, key, store
        columns = key.rows * key.running
        first = next((layers for most, layers in HEAD_LAYERS.items() if columns <= most), 0)
        self.head_layers = min(first, len(model.layers) - 1)
        tokens, *others = inputs
        self.inputs = [F.pad(tokens, (0, key.columns - tokens.shape[1])), *(each.clone() for each in others)]
        self.copied = others  # the tensors that the inputs were copied from
        self.graphs = [torch.cuda.CUDAGraph() for _ in range(2)] if tokens.is_cuda else []
        if self.graphs:
            with kernels.device_of(tokens):
                self._capture(pool)

    def _capture(self, pool: Any) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                self._run_head()
                self._run_rest()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graphs[0], pool=pool):
            self._run_head()
        with torch.cuda.graph(self.graphs[1], pool=pool):
            self._run_rest()

    def _run_head(self) -> None:
        tokens, index, *others = self.inputs
        attend = others[0] if self.key.padded else None
        rope = self.model.rope(tokens, attend, index) if self.key.padded else (others[0], others[1])
        first = self.head_layers
        entered = self.model.enter(tokens, attend, index, rope)
        self.between = self.model.through(self.model.layers[:first], entered, self._slots()[:first])

    def _run_rest(self) -> None:
        first = self.head_layers
        self.output = self.model.through(self.model.layers[first:], self.between, self._slots()[first:])

    def _slots(self) -> Sequence[Store | None]:
        if self.store is None:
            return [None] * len(self.model.layers)
        index, seen = self.inputs[1], self.key.keys
        return [partial(write_columns, keys, values, index, seen) for keys, values in self.store.layers]

    def begin(self, *inputs: Tensor) -> None:
        """Copy the inputs and run the first layers."""
        tokens, *others = inputs
        self.inputs[0][:, : tokens.shape[1]].copy_(tokens)  # columns behind are not attended to
        for held, new, last in zip(self.inputs[1:], others, self.copied, strict=True):
            if new is not last:
                held.copy_(new)
        self.copied = others
        if self.graphs:
            self.graphs[0].replay()
        else:
            self._run_head()

    @torch.no_grad()
    def finish(self) -> Sum:
        """Run the other layers."""
        if self.graphs:
            self.graphs[1].replay()
        else:
            self._run_rest()
        return self.output.x, self.output.change


def allow_shapes() -> None:
    """Let torch.compile keep many variants of a function; beyond its limit it falls back silently.

    Settings of torch.compile belong to a thread, and a server runs its model in a thread of its own.
    """
    from torch._dynamo import config

    if config.cache_size_limit < MAX_SHAPES:
        config.cache_size_limit = MAX_SHAPES


def captures(cache: Cache | None, grid: BlockGrid | None, columns: slice) -> bool:
    """Whether a forward of some columns with this cache is captured.

    Keys and values of rows with guesses, or of several requests, lie in several places, and a sub-block sees
    columns behind its own: such forwards run as plain ones. So does the forward of a prompt, which runs once
    and has a length of its own.
    """
    if isinstance(cache, AppendCache):
        few = columns.stop - columns.start <= 2 * cache.block_length
        return few and cache.sub_block is None and grid is not None
    return cache is None or isinstance(cache, BlockCache)


def seen_columns(end: int, width: int) -> int:
    """Return how many stored columns a forward up to column `end` sees; the mask hides those behind."""
    return min(width, max(MIN_KEYS, 1 << (end - 1).bit_length()))


def write_columns(
    keys: Tensor, values: Tensor, columns: Tensor, seen: int, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the keys and values of the columns that ran, and return those that are seen."""
    keys.index_copy_(2, columns, k)
    values.index_copy_(2, columns, v)
    return keys[:, :, :seen], values[:, :, :seen]


@dataclass(slots=True)
class StaticKV:
    """Keys and values of every layer, [B, H, N, D] each, at addresses that graphs are bound to."""

    layers: list[tuple[Tensor, Tensor]]
    owner: weakref.ref[BlockCache | AppendCache] | None = None  # whose keys and values were here last
    lent: dict[int, tuple[Tensor, Tensor]] | None = None  # what its `stored` is as long as they are here

    @staticmethod
    def empty(model: Trunk, rows: int, width: int) -> StaticKV:
        shape, weight = model.shape, model.norm.weight
        size = rows, shape.key_heads, width, shape.head_size
        return StaticKV([(weight.new_zeros(size), weight.new_zeros(size)) for _ in range(shape.layers)])

    def hold(self, cache: BlockCache | AppendCache, n: int, *, load: int) -> None:
        """Make this the store of a cache of `n` columns; `load` so many of them if they are elsewhere."""
        if cache.stored is self.lent and cache.stored[0][0].shape[2] == n:
            return
        self.release()
        for layer, sides in enumerate(self.layers):
            for number, side in enumerate(sides):
                side.zero_()  # hidden columns weigh nothing, but nothing times NaN is NaN
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
        """Let the owner keep a copy of its keys and values."""
        owner = None if self.owner is None else self.owner()
        if owner is not None and owner.stored is self.lent:
            owner.stored = {layer: (k.clone(), v.clone()) for layer, (k, v) in owner.stored.items()}
        self.owner = self.lent = None
