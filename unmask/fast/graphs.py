"""CUDA graphs of a model's layers: captured once per shape, replayed for every forward.

A forward of an 8B model consists of about a thousand kernels. Launched one by one, they leave the GPU
waiting. A graph launches them all at once. It is bound to its shapes and its memory, so there is one graph
per shape, and the graphs hold the keys and values of a run themselves. Canvases are padded to a multiple of
`bucket` columns, so that few graphs are needed. Without a GPU, everything here runs uncaptured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.append_cache import AppendCache, SideBySide
from unmask.decoding.cache import BlockCache
from unmask.fast.captured import CanvasForward, CapturedForward, GraphKey, PooledForward, StaticKV
from unmask.fast.kv_pool import RESERVED_PAGES, KVPool, count_pages
from unmask.models.layers import PAGE, Rope
from unmask.models.trunk import Sum, Trunk
from unmask.types import BlockGrid, Cache

MIN_KEYS = 512  # fewest columns that a forward with an AppendCache sees; more come in powers of two
MAX_PROMPT = 1024  # most columns over all rows of a captured prompt; a longer one keeps the GPU busy anyway
MAX_SHAPES = 256  # compiled variants of a layer and of a decision
MAX_FIXED = 64  # inputs kept for forwards of the same columns; the rotations of 4,096 columns take 2 MB
Fixed = TypeVar("Fixed", Tensor, Rope)


class Pending:
    """A forward whose first layers are under way."""

    def __init__(self, finish: Callable[[], Tensor]) -> None:
        self._finish = finish

    def result(self) -> Tensor:
        """Run the remaining layers and return the hidden states of the window, [B, W, D]."""
        return self._finish()


class GraphRunner:
    """Runs the layers of a trunk through captured graphs."""

    def __init__(self, model: Trunk, bucket: int, max_graphs: int, *, reads_pages: bool = False) -> None:
        """Make a runner. `reads_pages` says that the model's attention kernel reads keys in pages."""
        self.model = model
        self.reads_pages = reads_pages
        self.bucket = bucket
        self.max_graphs = max_graphs
        self.captured: OrderedDict[GraphKey, CapturedForward] = OrderedDict()
        self.stores: dict[tuple[int, int], StaticKV] = {}  # graphs are bound to the memory of these stores
        self.kv_pool = KVPool(model)  # and to the memory of this pool, for rows that come and go
        self.fixed: dict[tuple[str | int, ...], Any] = {}  # inputs that depend only on their size
        self.graph_pool: Any = None  # graphs run one after another, so they share their intermediate memory
        self._user = Lock()
        self.submitted = 0  # forwards that started early
        self.finished = 0  # early forwards whose result was used
        self._open: object = None  # the forward whose inputs are in place

    def reserve(self) -> bool:
        """Reserve the runner for one engine, and return whether it was free.

        Two engines in different threads would overwrite each other's inputs.
        """
        if not self._user.acquire(blocking=False):
            return False
        self.kv_pool.forget_prefixes()  # the weights may have changed since the last engine
        return True

    def release(self) -> None:
        """Let another engine reserve the runner."""
        self._user.release()

    @torch.no_grad()
    def run(self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None) -> Sum:
        """Run all layers on some columns, as `Trunk.run_layers` does."""
        if isinstance(cache, SideBySide) and is_poolable(cache, len(tokens)):
            return self._run_pooled(tokens, attend, columns, cache)
        if not captures(cache, self.model.info.grid, columns):
            with self.model.uncompiled():
                return self.model.run_layers(tokens, attend, columns, cache)
        return self._begin(tokens, attend, columns, cache)()

    def _run_pooled(self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: SideBySide) -> Sum:
        """Run all layers on the last columns of rows whose keys and values are in the pool."""
        allow_shapes()
        grid, running = self.model.info.grid, columns.stop - columns.start
        assert grid is not None, "only models that attend in blocks have such caches"
        missing = self.kv_pool.missing(cache.parts)
        if missing:
            self._drop_pooled()
            self.kv_pool.grow(missing)
        for each, length in cache.parts:
            self.kv_pool.admit(each, length)
        counts = tokens.new_full(tokens.shape[:1], tokens.shape[1]) if attend is None else attend.sum(-1)
        inputs = tokens[:, columns], counts, self.kv_pool.table(cache.parts)
        keys = self._page_columns(tokens.shape[1])
        key = GraphKey(len(tokens), self.kv_pool.columns, running, True, keys, grid, pooled=True)
        make = partial(PooledForward, self.model, key, tuple(self.kv_pool.layers), inputs)
        self._open = None
        short = cache.parts[0][0].is_short(running)
        # every prompt has its own length, so it is not worth compiling
        with nullcontext() if short else self.model.uncompiled():
            if not short and len(tokens) * running > MAX_PROMPT:
                return make(None, capture=False).run(*inputs)
            return self._captured(key, make).run(*inputs)

    def _page_columns(self, columns: int) -> int:
        """Return how many columns of a row the table of a forward has room for.

        Our kernel reads only the pages that it needs, so one size fits rows of any length.
        """
        most = self.model.info.max_length if self.reads_pages else seen_columns(columns)
        return PAGE * count_pages(max(most, columns))

    def size_pool(self, pages: int, *, close: float = 1.0) -> None:
        """Replace the pool with one of this many pages, unless its size is close enough or it is in use.

        A pool from `close` to `1 / close` times as large stays, together with the forwards bound to it.
        """
        pages += RESERVED_PAGES
        if close * pages <= self.kv_pool.columns // PAGE <= pages / close:
            return
        if self.kv_pool.tenants:
            return
        self._drop_pooled()
        self.kv_pool = KVPool(self.model)
        try:
            self.kv_pool.resize(pages)
        except torch.OutOfMemoryError:
            self.kv_pool = KVPool(self.model)
            raise

    def _drop_pooled(self) -> None:
        """Drop the forwards that are bound to the memory of the pool."""
        for key in [key for key in self.captured if key.pooled]:
            del self.captured[key]

    @torch.no_grad()
    def submit(
        self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None
    ) -> Pending | None:
        """Start the first layers of a forward, and return a handle to finish it. It may be dropped.

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
        """Run the first layers. The returned function runs the rest."""
        allow_shapes()
        rows, n = tokens.shape
        width = -(-n // self.bucket) * self.bucket
        store = None if cache is None else self._store(cache, rows, n, width, columns)
        # On a grid, a forward without a cache stops after its block, rounded up to need few graphs.
        ends = min(width, -(-columns.stop // self.bucket) * self.bucket)
        appends = isinstance(cache, AppendCache)
        whole = cache is None or (columns == slice(0, n) and not appends)
        running = slice(0, ends) if whole else columns
        keys = 0 if cache is None else min(width, seen_columns(running.stop)) if appends else width
        index = self._index(running, tokens.device)
        real = self._attend(attend, tokens, width)
        key = GraphKey(rows, width, len(index), real is not None, keys, self.model.info.grid)
        # without padding, rotations depend only on the columns
        inputs = (tokens, index, *(self._rope(tokens, running) if real is None else (real,)))
        self._open = None  # a forward that started earlier may lose its inputs
        captured = self._captured(key, partial(CanvasForward, self.model, key, store, inputs), store)
        captured.begin(*inputs)
        opened = self._open = object()

        def finish() -> Sum:
            if self._open is not opened:  # another forward overwrote the inputs, and perhaps the KV store
                return self.run(tokens, attend, columns, cache)
            x, change = captured.finish()
            own = slice(0, columns.stop - columns.start)
            return x[:, own], change[..., own, :]

        return finish

    def _index(self, columns: slice, device: torch.device) -> Tensor:
        """Return the numbers of the columns."""
        place = columns.start, columns.stop
        return self._same(("index", *place), lambda: torch.arange(*place, device=device))

    def _rope(self, tokens: Tensor, columns: slice) -> Rope:
        """Return the rotations of columns without padding."""
        place = columns.start, columns.stop
        return self._same(("rope", *place), lambda: self.model.rope(tokens, None, columns))

    def _attend(self, attend: Tensor | None, tokens: Tensor, width: int) -> Tensor | None:
        """Mark the real columns of the padded canvas, or return None if nothing is padding."""
        rows, n = tokens.shape
        if attend is not None:
            return F.pad(attend, (0, width - n))
        if n == width:
            return None
        ones = partial(torch.ones, rows, n, dtype=torch.bool, device=tokens.device)
        return self._same(("real", rows, n, width), lambda: F.pad(ones(), (0, width - n)))

    def _same(self, key: tuple[str | int, ...], make: Callable[[], Fixed]) -> Fixed:
        """Return the same tensors for the same key, so that a graph need not copy them again."""
        if key not in self.fixed:
            if len(self.fixed) >= MAX_FIXED:
                self.fixed.clear()
            self.fixed[key] = make()
        same: Fixed = self.fixed[key]
        return same

    def _store(self, cache: Cache, rows: int, n: int, width: int, columns: slice) -> StaticKV:
        """Return the KV store of a shape, with the keys and values of this cache."""
        assert isinstance(cache, BlockCache | AppendCache), "captures() lets no other cache pass"
        store = self.stores.get((rows, width))
        if store is None:
            store = self.stores[rows, width] = StaticKV.empty(self.model, rows, width)
        if isinstance(cache, AppendCache):
            store.hold(cache, width, load=cache.final)
        else:
            store.hold(cache, n, load=0 if columns == slice(0, n) else n)
        return store

    def _captured(
        self, key: GraphKey, make: Callable[[Any], CapturedForward], keep: StaticKV | None = None
    ) -> CapturedForward:
        """Return the captured forward of a key. `make` captures a new one in the memory that graphs share."""
        if key not in self.captured:
            while len(self.captured) >= self.max_graphs:
                self._evict(keep)
            if not self.captured:  # the old memory was freed with the last graph that used it
                on_gpu = self.model.norm.weight.is_cuda
                self.graph_pool = torch.cuda.graph_pool_handle() if on_gpu else None
            self.captured[key] = make(self.graph_pool)
        self.captured.move_to_end(key)
        return self.captured[key]

    def clear(self) -> None:
        """Free all graphs and their memory. Each is captured again when it is needed.

        This also drops the KV stores of captures that failed. It copies nothing, because memory may be short:
        a cache keeps its keys and values where they are, and the next store of their shape loads them.
        """
        self.captured.clear()
        self.stores.clear()
        self.fixed.clear()
        if not self.kv_pool.tenants:
            self.kv_pool = KVPool(self.model)

    def _evict(self, keep: StaticKV | None) -> None:
        """Drop the least recently used graph, and its KV store unless it is `keep` or still used."""
        key, captured = self.captured.popitem(last=False)
        used = any(other.store is captured.store for other in self.captured.values())
        if captured.store is not None and captured.store is not keep and not used:
            self.stores.pop((key.rows, key.columns)).release()


def runner_of(model: object) -> GraphRunner | None:
    """Return the runner of a compiled model, or None if the model is not compiled."""
    runner: GraphRunner | None = getattr(model, "runner", None)
    return runner


def allow_shapes() -> None:
    """Let torch.compile keep many variants of a function. Beyond its limit it silently stops compiling.

    Every thread has its own settings of torch.compile, and a server runs its model in a separate thread.
    """
    from torch._dynamo import config

    if config.cache_size_limit < MAX_SHAPES:
        config.cache_size_limit = MAX_SHAPES


def captures(cache: Cache | None, grid: BlockGrid | None, columns: slice) -> bool:
    """Return whether a forward of these columns with this cache is captured.

    Prompts are not, because each has its own length. Sub-blocks are not, because they see later columns. Rows
    with guesses are not, because their keys and values are in several places. For several requests, `run`
    decides.
    """
    if isinstance(cache, AppendCache):
        width = columns.stop - columns.start
        return cache.is_short(width) and cache.sub_block is None and grid is not None
    return cache is None or isinstance(cache, BlockCache)


def is_poolable(cache: SideBySide, rows: int) -> bool:
    """Return whether the keys and values of several requests go to the pool.

    They do not with guidance, where each cache has two rows, or with sub-blocks, which see later columns.
    """
    return rows == len(cache.parts) and all(each.sub_block is None for each, _ in cache.parts)


def seen_columns(end: int) -> int:
    """Return how many stored columns a forward up to column `end` sees. The mask hides those after it."""
    return max(MIN_KEYS, 1 << (end - 1).bit_length())
