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
from torch import Tensor, nn

from unmask.fast import kernels
from unmask.fast.split_products import can_split, split_product
from unmask.models.layers import Attention, Rope, Store, SwiGLU, attend, product
from unmask.models.trunk import Stream, Sum, Trunk
from unmask.types import Cache

WARMUPS = 3  # runs before a recording, in which libraries choose kernels and take their workspaces
SHORT = 512  # queries of all rows up to which our attention is the faster one on an H200
SHORT_GROUPED = 4096  # the same for heads that share keys
# layers that run before the host knows whether they are needed, so that the device need not wait, by the most
# columns of all rows: of many, one layer is long enough, and of more the wait is nothing beside the forward
OPENING = {512: 2, 4096: 1}
FEW = 128  # columns up to which a product takes as long as its weights take to arrive
MOST_SHAPES = 256  # compiled variants of a layer and of a decision
MOST_FIXED = 64  # inputs held for the next run of the same columns; the rotations of 4,096 take 2 MB
Model = TypeVar("Model", bound=Trunk)
Fixed = TypeVar("Fixed", Tensor, Rope)
Opening = Callable[..., Stream]
Rest = Callable[[Stream, Tensor], Stream]


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
        _cut_products(model)
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
    from unmask.fast.kernels.attention import fused_attend

    # what is longer is faster with the library's, which repeats the keys of grouped heads
    short = SHORT if model.shape.heads == model.shape.key_heads else SHORT_GROUPED

    def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        queries = query.shape[0] * query.shape[2]
        return (fused_attend if queries <= short else attend)(query, key, value, mask)

    for module in model.modules():
        if isinstance(module, Attention):
            module.mix = mix


def _cut_products(model: Trunk) -> None:
    """Leave products of few columns in pieces, where whoever adds them up norms the sum too."""
    for module in model.modules():
        if isinstance(module, Attention | SwiGLU):
            module.product = _cut


def _cut(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer's output, in pieces if that is faster."""
    weight = _only_weight(layer)
    if weight is None or x.shape[:-1].numel() > FEW or not can_split(weight):
        return product(layer, x)
    pieces: Tensor = split_product(x, weight)
    return pieces


def _only_weight(layer: nn.Module) -> Tensor | None:
    """The weight of a layer that is nothing but a product with it; None: it is more."""
    if type(layer) is not nn.Linear or layer.bias is not None:
        return None
    return None if layer._forward_hooks or layer._forward_pre_hooks else layer.weight


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
        self.fixed: dict[tuple[str | int, ...], Any] = {}  # inputs that say nothing but their size
        self.opened: object = None  # stands for what was made ready last
        self.pool: Any = None  # recordings run one after another, so they may share what they use in between

    @torch.no_grad()
    def ready(
        self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None
    ) -> Callable[[], Sum]:
        """Starts on the first layers, as the host may need a while to decide; what is returned goes on."""
        rows, n = tokens.shape
        width = -(-n // self.bucket) * self.bucket
        whole = columns == slice(0, n)
        kept = None if cache is None else self._keep(cache, rows, width, whole=whole)
        running = slice(0, width) if whole else columns
        index = self._index(running, tokens.device)
        real = self._attend(attend, tokens, width)
        key = Key(rows, width, len(index), real is not None, cache is not None)
        # without padding, rotations say nothing but the columns
        inputs = (tokens, index, *(self._rope(tokens, running) if real is None else (real,)))
        self.opened = None  # what was made ready before may be lost by now
        recording = self._recording(key, kept, inputs)
        recording.open(*inputs)
        opened = self.opened = object()

        def play() -> Sum:
            if self.opened is not opened:  # the places were taken since, and perhaps the keys and values
                return self.ready(tokens, attend, columns, cache)()
            x, change = recording.play()
            real = slice(0, columns.stop - columns.start)
            return x[:, real], change[..., real, :]

        return play

    def _index(self, columns: slice, device: torch.device) -> Tensor:
        """The columns as numbers."""
        place = columns.start, columns.stop
        return self._same(("index", *place), lambda: torch.arange(*place, device=device))

    def _rope(self, tokens: Tensor, columns: slice) -> Rope:
        """The rotations of columns where nothing is padding."""
        place = columns.start, columns.stop
        return self._same(("rope", *place), lambda: self.model.rope(tokens, None, columns))

    def _attend(self, attend: Tensor | None, tokens: Tensor, width: int) -> Tensor | None:
        """The real columns of the padded canvas; padding on the right moves no column and no position."""
        rows, n = tokens.shape
        if attend is not None:
            return F.pad(attend, (0, width - n))
        if n == width:
            return None
        ones = partial(torch.ones, rows, n, dtype=torch.bool, device=tokens.device)
        return self._same(("real", rows, n, width), lambda: F.pad(ones(), (0, width - n)))

    def _same(self, key: tuple[str | int, ...], make: Callable[[], Fixed]) -> Fixed:
        """Always the same tensors for the same key: a recording that got them last need not copy them."""
        if key not in self.fixed:
            if len(self.fixed) >= MOST_FIXED:
                self.fixed.clear()
            self.fixed[key] = make()
        same: Fixed = self.fixed[key]
        return same

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
            if not self.recordings:
                self.pool = self._new_pool()  # the old one went with the last that used it
            if kept is not None:  # which may have gone with the last recording that used it
                self.kept[key.rows, key.columns] = kept
            work = self._work(key, kept)
            self.recordings[key] = Recording(*work, key.columns, inputs, self.pool)
        self.recordings.move_to_end(key)
        return self.recordings[key]

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.model.norm.weight.is_cuda else None

    def _forget(self, key: Key, _: Recording) -> None:
        """Let go of the keys and values that no recording is bound to any more."""
        size = key.rows, key.columns
        if key.cached and not any(other.cached and other[:2] == size for other in self.recordings):
            self.kept.pop(size, None)

    def _work(self, key: Key, kept: Kept | None) -> tuple[Opening, Rest]:
        """The first layers, and the rest of them."""
        model, columns = self.model, key.rows * key.running
        first = next((layers for most, layers in OPENING.items() if columns <= most), 0)
        first = min(first, len(model.layers) - 1)

        def stores(index: Tensor) -> Sequence[Store | None]:
            if kept is None:
                return [None] * len(model.layers)
            return [Slot(keys, values, index) for keys, values in kept.layers]

        def opening(tokens: Tensor, index: Tensor, *others: Tensor) -> Stream:
            attend = others[0] if key.padded else None
            cosine, sine = model.rope(tokens, attend, index) if key.padded else others
            entered = model.enter(tokens, attend, index, (cosine, sine))
            return model.through(model.layers[:first], entered, stores(index)[:first])

        def rest(stream: Stream, index: Tensor) -> Stream:
            return model.through(model.layers[first:], stream, stores(index)[first:])

        return opening, rest


class Recording:
    """Layers on tokens, an index and perhaps more, recorded once in two parts and replayed, which overwrites
    their output. Without a GPU they run as they are."""

    def __init__(
        self, opening: Opening, rest: Rest, columns: int, inputs: Sequence[Tensor], pool: Any
    ) -> None:
        self.work = opening, rest
        tokens, *others = inputs
        self.inputs = [F.pad(tokens, (0, columns - tokens.shape[1])), *(given.clone() for given in others)]
        self.given = others  # what the copies were made from
        self.graphs = [torch.cuda.CUDAGraph() for _ in self.work] if tokens.is_cuda else []
        if self.graphs:
            with kernels.device_of(tokens):
                self._record(pool)

    def _record(self, pool: Any) -> None:
        self._warm_up()
        with torch.cuda.graph(self.graphs[0], pool=pool):
            self._open()
        with torch.cuda.graph(self.graphs[1], pool=pool):
            self._close()

    def _warm_up(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            opening, rest = self.work
            for _ in range(WARMUPS):
                rest(opening(*self.inputs), self.inputs[1])
        torch.cuda.current_stream().wait_stream(stream)

    def _open(self) -> None:
        self.between = self.work[0](*self.inputs)

    def _close(self) -> None:
        self.output = self.work[1](self.between, self.inputs[1])

    def open(self, *inputs: Tensor) -> None:
        """Take these inputs for the next play, and start on it."""
        tokens, *rest = inputs
        self.inputs[0][:, : tokens.shape[1]].copy_(tokens)  # what stands behind is not attended to
        for held, given, last in zip(self.inputs[1:], rest, self.given, strict=True):
            if given is not last:
                held.copy_(given)
        self.given = rest
        if self.graphs:
            self.graphs[0].replay()
        else:
            self._open()

    @torch.no_grad()
    def play(self) -> Sum:
        """What comes of the inputs in their places."""
        if self.graphs:
            self.graphs[1].replay()
        else:
            self._close()
        return self.output.x, self.output.change


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
