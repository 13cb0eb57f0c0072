"""Faster forwards for a GPU: layers compiled, weights joined, and the run of them recorded and replayed.

A forward of an 8B model is some thousand kernels; launched one by one they leave the GPU waiting. A recording
(a CUDA graph) launches them all at once. It is bound to its shapes and to its memory, so there is one per
shape, canvases are padded to a multiple of `bucket` columns to need few of them, and the recordings keep the
keys and values of a run themselves. Without a GPU everything here runs too, only unrecorded.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask import kernels
from unmask.models.layers import Attention, Store, SwiGLU, attend
from unmask.models.trunk import Trunk
from unmask.types import Cache

WARMUPS = 3  # runs before a recording, in which libraries choose kernels and take their workspaces
SHORT = 512  # queries of all rows up to which our attention is the faster one on an H200
SHORT_GROUPED = 4096  # the same for heads that share keys
MOST_SHAPES = 256  # compiled variants of a layer and of a decision
Model = TypeVar("Model", bound=Trunk)
Work = Callable[..., Tensor]


def compile(
    model: Model, *, layers: bool = True, join: bool = True, bucket: int = 64, recordings: int = 32
) -> Model:
    """The same model, faster on a GPU from its second forward of a shape on; changes it in place.

    `layers`: compile them with torch.compile, which rounds differently in the last bit. `join`: one product
    for queries, keys and values, and one for both halves of the feed-forward layer. `bucket`: canvases are
    padded to a multiple of this many columns. `recordings` are kept at most, those least used go first.
    """
    if not isinstance(model, Trunk):
        raise ValueError(f"compile needs a model from unmask.load, got {type(model).__name__}")
    for name, value in {"bucket": bucket, "recordings": recordings}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    if join:
        for module in model.modules():
            if isinstance(module, Attention | SwiGLU):
                module.join()
    if layers:
        _allow_shapes(MOST_SHAPES)
        _fuse_attention(model)
        for module in (*model.layers, model.norm):
            module.compile(dynamic=False)
    model.info = replace(model.info, compiled=layers)
    model.runner = Runner(model, bucket, recordings)
    return model


def _allow_shapes(count: int) -> None:
    """Let torch.compile keep so many variants of a function; beyond its limit it would fall back silently."""
    from torch._dynamo import config

    config.cache_size_limit = max(config.cache_size_limit, count)


def _fuse_attention(model: Trunk) -> None:
    """Let our own kernel mix short canvases, where it can be used."""
    if not kernels.attends(model.norm.weight, model.shape.head_size):
        return
    from unmask.kernels.attention import fused_attend

    # what is longer is faster with the library's, which repeats the keys of grouped heads
    short = SHORT if model.shape.heads == model.shape.key_heads else SHORT_GROUPED

    def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        queries = query.shape[0] * query.shape[2]
        return (fused_attend if queries <= short else attend)(query, key, value, mask)

    for module in model.modules():
        if isinstance(module, Attention):
            module.mix = mix


class Key(NamedTuple):
    """What a recording is bound to."""

    rows: int
    columns: int  # of the padded canvas
    running: int  # columns that run
    padded: bool  # has an `attend`
    cached: bool


class Runner:
    """Runs a trunk's layers through recordings. One run with a cache at a time."""

    def __init__(self, model: Trunk, bucket: int, most: int) -> None:
        self.model = model
        self.bucket = bucket
        self.most = most
        self.recordings: OrderedDict[Key, Recording] = OrderedDict()
        self.kept: dict[tuple[int, int], Kept] = {}  # recordings are bound to the memory of these
        self.fixed: dict[tuple[int, ...], Tensor] = {}  # inputs that say nothing but their size
        self.placed: object = None  # stands for what was made ready last
        # recordings run one after another, so they may share what they use in between
        self.pool = torch.cuda.graph_pool_handle() if model.norm.weight.is_cuda else None

    @torch.no_grad()
    def ready(
        self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None
    ) -> Callable[[], Tensor]:
        """Puts everything in its place; what is returned plays."""
        rows, n = tokens.shape
        width = -(-n // self.bucket) * self.bucket
        whole = columns == slice(0, n)
        kept = None if cache is None else self._keep(cache, rows, width, whole=whole)
        index = self._index(slice(0, width) if whole else columns, tokens.device)
        real = self._attend(attend, tokens, width)
        key = Key(rows, width, len(index), real is not None, cache is not None)
        inputs = (tokens, index) if real is None else (tokens, index, real)
        recording = self._recording(key, kept, inputs)
        recording.place(*inputs)
        placed = self.placed = object()

        def play() -> Tensor:
            if self.placed is not placed:  # the places were taken since, and perhaps the keys and values
                return self.ready(tokens, attend, columns, cache)()
            return recording.play()[:, : columns.stop - columns.start]

        return play

    def _index(self, columns: slice, device: torch.device) -> Tensor:
        """The columns as numbers."""
        place = columns.start, columns.stop
        return self._same(place, lambda: torch.arange(*place, device=device))

    def _attend(self, attend: Tensor | None, tokens: Tensor, width: int) -> Tensor | None:
        """The real columns of the padded canvas; padding on the right moves no column and no position."""
        rows, n = tokens.shape
        if attend is not None:
            return F.pad(attend, (0, width - n))
        if n == width:
            return None
        ones = partial(torch.ones, rows, n, dtype=torch.bool, device=tokens.device)
        return self._same((rows, n, width), lambda: F.pad(ones(), (0, width - n)))

    def _same(self, key: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
        """Always the same tensor for the same key: a recording that got it last need not copy it."""
        if key not in self.fixed:
            if len(self.fixed) >= MOST_SHAPES:
                self.fixed.clear()
            self.fixed[key] = make()
        return self.fixed[key]

    def _keep(self, cache: Cache, rows: int, width: int, *, whole: bool) -> Kept:
        """The keys and values of this run; a run of all columns makes them its own."""
        kept = self.kept.get((rows, width))
        if kept is None:
            kept = self.kept[rows, width] = Kept.empty(self.model, rows, width)
        if whole:
            kept.owner = weakref.ref(cache)
        elif kept.owner is None or kept.owner() is not cache:
            raise ValueError(
                "a compiled model keeps the keys and values of one run at a time, and another run with a "
                "cache came between; finish one before the next, or call start_block"
            )
        return kept

    def _recording(self, key: Key, kept: Kept | None, inputs: Sequence[Tensor]) -> Recording:
        if key not in self.recordings:
            while len(self.recordings) >= self.most:
                self._forget(*self.recordings.popitem(last=False))
            if kept is not None:  # which may have gone with the last recording that used it
                self.kept[key.rows, key.columns] = kept
            self.recordings[key] = Recording(self._work(kept), key.columns, inputs, self.pool)
        self.recordings.move_to_end(key)
        return self.recordings[key]

    def _forget(self, key: Key, _: Recording) -> None:
        """Let go of the keys and values that no recording is bound to any more."""
        size = key.rows, key.columns
        if key.cached and not any(other.cached and other[:2] == size for other in self.recordings):
            self.kept.pop(size, None)

    def _work(self, kept: Kept | None) -> Work:
        model = self.model

        def work(tokens: Tensor, index: Tensor, attend: Tensor | None = None) -> Tensor:
            stores: Sequence[Store | None] = [None] * len(model.layers)
            if kept is not None:
                stores = [Slot(keys, values, index) for keys, values in kept.layers]
            states: Tensor = model.through_layers(tokens, attend, index, stores)
            return states

        return work


class Recording:
    """Work on tokens, an index and perhaps more, recorded once and replayed, which overwrites its output."""

    def __init__(self, work: Work, columns: int, inputs: Sequence[Tensor], pool: Any) -> None:
        self.work = work
        tokens, *rest = inputs
        self.inputs = [F.pad(tokens, (0, columns - tokens.shape[1])), *(given.clone() for given in rest)]
        self.given = rest  # what the copies were made from
        self.graph = torch.cuda.CUDAGraph() if self.inputs[0].is_cuda else None
        self.output: Tensor | None = None
        if self.graph is not None:
            self._warm_up()
            with torch.cuda.graph(self.graph, pool=pool):
                self.output = work(*self.inputs)

    def _warm_up(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                self.work(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)

    def place(self, *inputs: Tensor) -> None:
        """Take these inputs for the next play."""
        tokens, *rest = inputs
        self.inputs[0][:, : tokens.shape[1]].copy_(tokens)  # what stands behind is not attended to
        for held, given, last in zip(self.inputs[1:], rest, self.given, strict=True):
            if given is not last:
                held.copy_(given)
        self.given = rest

    @torch.no_grad()
    def play(self) -> Tensor:
        """What comes of the inputs in their places."""
        if self.graph is None or self.output is None:
            return self.work(*self.inputs)
        self.graph.replay()
        return self.output


@dataclass(slots=True)
class Kept:
    """Keys and values of every layer, [B, H, N, D] each, and the cache of the run they belong to."""

    layers: list[tuple[Tensor, Tensor]]
    owner: weakref.ref[Cache] | None = None

    @staticmethod
    def empty(model: Trunk, rows: int, width: int) -> Kept:
        shape, weight = model.shape, model.norm.weight
        size = rows, shape.key_heads, width, shape.head_size
        return Kept([(weight.new_zeros(size), weight.new_zeros(size)) for _ in range(shape.layers)])


class Slot:
    """Where one layer keeps its keys and values."""

    def __init__(self, keys: Tensor, values: Tensor, index: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.index = index

    def __call__(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, given the fresh ones of the columns that ran."""
        self.keys.index_copy_(2, self.index, k)
        self.values.index_copy_(2, self.index, v)
        return self.keys, self.values
