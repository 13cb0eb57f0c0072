"""The transformer that all families share. A family adds its config, positions, names and alignment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.experts import PARTS, ExpertShape, Mixture
from unmask.models.layers import (
    Attention,
    Mask,
    Pages,
    RMSNorm,
    Rope,
    Store,
    SwiGLU,
    block_mask,
    block_numbers,
    key_mask,
    own_dtype,
    rotary,
)
from unmask.models.quantized.int8 import Int8Embedding
from unmask.types import Cache, ModelInfo

if TYPE_CHECKING:
    from unmask.models.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes and options of a trunk."""

    vocab_size: int  # width of the logits
    size: int  # width of a hidden state
    layers: int
    heads: int
    key_heads: int
    head_size: int
    mlp_size: int
    norm_eps: float
    rope_theta: float
    qkv_bias: bool
    tied: bool  # the head uses the embedding's weight
    qk_norm: bool = False  # norm every query and key head before its rotation
    rotated: int | None = None  # how many first columns of a head are rotated; None means all
    fused_qkv: bool = False  # one matrix for queries, keys and values
    experts: ExpertShape | None = None  # experts in place of the MLP, except in the dense layers

    def __post_init__(self) -> None:
        if self.head_size < 1 or self.head_size % 2:
            raise ValueError(
                "config.json: an attention head must have an even size to be rotated, "
                f"got {self.head_size} for {self.heads} heads and a hidden size of {self.size}"
            )
        if self.rotary_size % 2 or not 0 < self.rotary_size <= self.head_size:
            raise ValueError(
                "config.json: the rotated part of an attention head must be even and within the head, "
                f"got {self.rotary_size} of {self.head_size} columns"
            )
        if self.heads % self.key_heads:
            raise ValueError(
                f"config.json: {self.heads} attention heads cannot share {self.key_heads} key heads evenly"
            )

    @property
    def rotary_size(self) -> int:
        """Number of columns of a head that are rotated."""
        return self.head_size if self.rotated is None else self.rotated

    @property
    def weights(self) -> int:
        """Number of weights in all matrices, without those of routers."""
        matrices = 1 if self.tied else 2
        attention = 2 * (self.heads + self.key_heads) * self.head_size
        layers = self.layers * attention + 3 * self.mlp_width(active=False)
        return self.size * (matrices * self.vocab_size + layers)

    def mlp_width(self, *, active: bool) -> int:
        """Add up the hidden widths of all MLPs and experts, or, if `active`, of those that a token uses."""
        if self.experts is None:
            return self.layers * self.mlp_size
        dense = len(self.experts.dense)
        return dense * self.mlp_size + (self.layers - dense) * self.experts.width(active=active)


Sum = tuple[Tensor, Tensor]  # the residual stream and the change to add to it, the inputs of RMSNorm


class Stream(NamedTuple):
    """The state between two layers. The last layer's `change` is not added to `x` yet.

    x ──────────────► + ──► x            the next norm adds and norms in one kernel
    change ─ (layer) ─┘ └─► norm(x)
    """

    x: Tensor
    change: Tensor
    rope: Rope
    mask: Mask


class Runner(Protocol):
    """Runs the layers in place of `Trunk.run_layers`: see unmask/fast/graphs.py."""

    def run(self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None) -> Sum:
        """Compute what `Trunk.run_layers` computes."""
        ...


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, shape: Shape, number: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.size, shape.norm_eps)
        self.attention = Attention(
            shape.size,
            heads=shape.heads,
            key_heads=shape.key_heads,
            head_size=shape.head_size,
            bias=shape.qkv_bias,
            fused=shape.fused_qkv,
            norm_eps=shape.norm_eps if shape.qk_norm else None,
        )
        self.mlp_norm = RMSNorm(shape.size, shape.norm_eps)
        if shape.experts is None or number in shape.experts.dense:
            self.mlp: SwiGLU | Mixture = SwiGLU(shape.size, shape.mlp_size)
        else:
            self.mlp = Mixture(shape.size, shape.experts)

    def forward(self, x: Tensor, change: Tensor, rope: Rope, mask: Mask, store: Store | None) -> Sum:
        x, normed = self.attention_norm(x, change)
        x, normed = self.mlp_norm(x, self.attention(normed, rope, mask, store))
        return x, self.mlp(normed)

    def attention_weights(self, stream: Stream) -> Tensor:
        """Return this layer's attention on its input, averaged over all heads, [B, n, n] float32."""
        assert not isinstance(stream.mask, Pages), "keys in pages are not compared one by one"
        normed = self.attention_norm(stream.x, stream.change)[1]
        return self.attention.weights(normed, stream.rope, stream.mask)


class Slot(NamedTuple):
    """The place of a published tensor in our state dict: a whole tensor, or an expert's part of a stack."""

    name: str
    part: tuple[int | slice, ...] = ()  # the index of the part; () means the whole tensor


class Trunk(nn.Module):
    """Embedding, layers, norm and head.

    `names` maps published names of modules or of single tensors to ours. {} is the number of the layer.
    """

    names: ClassVar[dict[str, str]] = {}
    counts_padding: ClassVar[bool] = True  # whether positions count padding; caches per row need False
    folder: Path | None = None  # the folder of the checkpoint
    tokenizer: Tokenizer | None = None
    runner: Runner | None = None  # set by unmask.compile, as is `executor`
    executor: Callable[..., object] | None = None  # this model's executor; None means the plain one

    def __init__(self, config: Mapping[str, object], shape: Shape, info: ModelInfo) -> None:
        super().__init__()
        self.config = dict(config)
        self.shape = shape
        # may be replaced, e.g. when the tokenizer has more end tokens
        self.info = replace(info, separable=True)
        sizes = shape.vocab_size, shape.size
        self.embed: nn.Embedding | Int8Embedding = nn.Embedding(*sizes, _weight=_fresh(*sizes))
        self.layers = nn.ModuleList(Layer(shape, number) for number in range(shape.layers))
        self.norm = RMSNorm(shape.size, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.size, shape.vocab_size, bias=False)

    @staticmethod
    def shape_of(config: Mapping[str, object]) -> Shape:
        """Read the sizes of a model from its config, without building it."""
        raise NotImplementedError

    def positions(self, tokens: Tensor, attend: Tensor | None) -> Tensor:
        """Return the position of each column: [B, N] if padding is skipped, else [1, N]."""
        if attend is None or self.counts_padding:
            return torch.arange(tokens.shape[1], device=tokens.device)[None]
        return (attend.cumsum(-1) - 1).masked_fill(~attend, 1)

    def forward(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        return self.logits(self.hidden_states(tokens, attend, window, cache))

    def hidden_states(
        self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None
    ) -> Tensor:
        """Return the hidden states that predict the window's columns, [B, W, size]."""
        with own_dtype(self.embed.weight):
            states = self.states(tokens, attend, self.predicting(window), cache)
        return self.align(states, attend, window)

    def shadow_states(self, tokens: Tensor, attend: Tensor | None, window: slice) -> tuple[Tensor, Tensor]:
        """Return the predictions of the window's columns and of their shadows, [B, W, size or V] each.

        A shadow is an additional mask token for each window column, at the position whose hidden state
        predicts the column. This is its own position, or in Dream the one before. A shadow attends to all
        shadows except those of padding, and to all real columns except the one that it predicts. Real columns
        attend to each other, but to no shadow. So a deep layer can still see a token through other columns,
        as in WINO. A compiled model runs this uncompiled.
        """
        n, need = tokens.shape[1], self.predicting(window)
        columns = torch.arange(need.start, need.stop, device=tokens.device)[None, :, None]
        place = self.align(columns, attend, window)[..., 0]  # [1 or B, W], the place of each shadow
        own_positions = self.positions(tokens, attend)
        doubled = torch.take_along_dim(own_positions, place, dim=1)
        positions = torch.cat([own_positions.expand(len(doubled), -1), doubled], dim=1)
        shadow = torch.full_like(tokens[:, window], self.info.mask_id)
        both = torch.cat([tokens, shadow], dim=1)
        rope = rotary(positions, self.shape.rotary_size, self.shape.rope_theta)
        visible = shadow_mask(n, window, attend, tokens.device)
        if self.info.grid is not None:
            blocks = block_numbers(self.info.grid, tokens, attend)
            beside = torch.take_along_dim(blocks, place, dim=1)
            blocks = torch.cat([blocks.expand(len(beside), -1), beside], dim=1)
            real = None if attend is None else torch.cat([attend, attend[:, window]], dim=1)
            visible = visible & block_mask(blocks, real, slice(None))
        with self.uncompiled():
            stream = self.through(self.layers, self.enter(both, rope, visible), [None] * len(self.layers))
            every, ended = slice(0, both.shape[1]), (stream.x, stream.change)
            own = self.align(self.norm_states(ended, every, need), attend, window)
            shadows = self.norm_states(ended, every, slice(n, both.shape[1]))
        return self.predictions(own), self.predictions(shadows)

    def attention_states(self, tokens: Tensor, attend: Tensor | None, layers: int) -> tuple[Tensor, Tensor]:
        """Return the prediction of each column, [B, N, size or V], and the attention [B, N, N].

        The attention is averaged over all heads of the last `layers` layers, in float32. A compiled model
        runs this uncompiled.
        """
        every = slice(0, tokens.shape[1])
        rope, mask = self.rope(tokens, attend, every), self.mask(tokens, attend, every)
        stream = self.enter(tokens, rope, mask)
        first, weights = max(0, len(self.layers) - layers), []
        with self.uncompiled():
            for number, layer in enumerate(self.layers):
                assert isinstance(layer, Layer)
                if number >= first:  # a second time, so that the layer itself keeps its fast kernel
                    weights.append(layer.attention_weights(stream))
                stream = self.through([layer], stream, [None])
            states = self.norm_states((stream.x, stream.change), every, self.predicting(every))
        return self.predictions(self.align(states, attend, every)), torch.stack(weights).mean(0)

    def predictions(self, states: Tensor) -> Tensor:
        """Return what the loop reads: hidden states, or logits if the head is more than a matrix."""
        return self.logits(states) if self.head_weight is None else states

    def uncompiled(self) -> AbstractContextManager[object]:
        """Run compiled layers uncompiled, because shapes that rarely repeat are not worth compiling."""
        return nullcontext() if self.runner is None else torch.compiler.set_stance("force_eager")

    def states(self, tokens: Tensor, attend: Tensor | None, need: slice, cache: Cache | None) -> Tensor:
        """Return the normed hidden states of the columns in `need`, [B, n, size]."""
        columns = self.columns(tokens, need, cache)
        run = self.run_layers if self.runner is None else self.runner.run
        stream = run(tokens, attend, columns, cache)
        if cache is not None:
            cache.ran(columns)
        return self.norm_states(stream, columns, need)

    def columns(self, tokens: Tensor, need: slice, cache: Cache | None) -> slice:
        """Return the columns that must run to get the states of those in `need`."""
        n = tokens.shape[1]
        if cache is not None:
            return cache.columns(need, n)
        # on a grid, no column of `need` sees a column after its own block
        return slice(0, n if self.info.grid is None else min(n, need.stop + self.info.grid.length - 1))

    def norm_states(self, stream: Sum, columns: slice, need: slice) -> Tensor:
        """Norm the last layer's output on `columns`, but only for those in `need`."""
        part = slice(need.start - columns.start, need.stop - columns.start)
        # A compiled norm is bound to the strides of its inputs, and these must not depend on the columns that
        # ran. Slices of several rows are copied. A slice of one row needs only a view to set its strides.
        sides = (side[..., part, :].contiguous() for side in stream)
        normed: Tensor = self.norm(*(side.view(side.shape) for side in sides))[1]
        return normed

    def predicting(self, window: slice) -> slice:
        """Return the columns whose hidden states predict those of the window."""
        return window

    def align(self, states: Tensor, attend: Tensor | None, window: slice) -> Tensor:
        """Pick the hidden state of each window column from those of the predicting columns."""
        return states

    @property
    def head_weight(self) -> Tensor | None:
        """The head's matrix [V, size], or None if the head is more than a matrix, e.g. quantized."""
        head = self.embed if self.head is None else self.head
        plain = type(head) in (nn.Embedding, nn.Linear) and getattr(head, "bias", None) is None
        return head.weight.detach() if plain else None

    def run_layers(self, tokens: Tensor, attend: Tensor | None, columns: slice, cache: Cache | None) -> Sum:
        """Run all layers on some columns; the last layer's change is not added yet."""
        stores = [
            None if cache is None else partial(cache.update, layer, columns)
            for layer in range(len(self.layers))
        ]
        rope, mask = self.rope(tokens, attend, columns), self.mask(tokens, attend, columns)
        stream = self.through(self.layers, self.enter(tokens[:, columns], rope, mask), stores)
        return stream.x, stream.change

    def rope(self, tokens: Tensor, attend: Tensor | None, columns: slice | Tensor) -> Rope:
        """Return the rotations of the columns [n]."""
        positions = self.positions(tokens, attend)[:, columns]
        return rotary(positions, self.shape.rotary_size, self.shape.rope_theta)

    def mask(self, tokens: Tensor, attend: Tensor | None, columns: slice | Tensor) -> Tensor | None:
        """Return which keys the queries of the columns [n] see, [1 or B, 1, 1 or n, N], or None for all."""
        if self.info.grid is None:
            return key_mask(attend)
        return block_mask(block_numbers(self.info.grid, tokens, attend), attend, columns)

    def enter(self, tokens: Tensor, rope: Rope, mask: Mask) -> Stream:
        """Embed tokens [B, n], and return the input of the first layer."""
        change: Tensor = self.embed(tokens).to(self.norm.weight.dtype)
        x = torch.zeros_like(change, dtype=torch.float32)  # adds up too many terms for bfloat16
        return Stream(x, change, rope, mask)

    def through(self, layers: Iterable[nn.Module], stream: Stream, stores: Sequence[Store | None]) -> Stream:
        """Run `layers` on `stream`; `stores[i]` is the KV store of layer i."""
        for layer, store in zip(layers, stores, strict=True):
            x, change = layer(*stream, store)
            stream = Stream(x, change, stream.rope, stream.mask)
        return stream

    def logits(self, states: Tensor) -> Tensor:
        """Apply the head: [B, W, size] -> [B, W, V]."""
        with own_dtype(self.embed.weight):
            if self.head is not None:
                logits: Tensor = self.head(states)
            elif isinstance(self.embed, Int8Embedding):
                logits = self.embed.logits(states)
            else:
                logits = F.linear(states, self.embed.weight)
        return logits

    def needs(self, key: str) -> bool:
        """Return whether a published tensor is needed. Stored rotations and a tied head are not."""
        spare = self.head is None and _translate(key, self.names) == "head.weight"
        return not spare and not key.endswith("rotary_emb.inv_freq")

    def slots(self) -> dict[str, Slot]:
        """Return the place of each published tensor in the state dict."""
        return {key: slot for name in self.state_dict() for key, slot in self.published(name).items()}

    def published(self, name: str) -> dict[str, Slot]:
        """Return the published tensors that one of our tensors holds."""
        module, _, kind = name.rpartition(".")
        experts = self.shape.experts
        if experts is None or not module.endswith(".experts"):
            return {self.publish(name): Slot(name)}
        prefix, size = self.publish(name).removesuffix(f".{kind}"), experts.size
        rows = [slice(i * size, (i + 1) * size) for i in range(2)] if kind == "gate_up" else [slice(None)]
        return {
            f"{prefix}.{expert}.{part}_proj.weight": Slot(name, (expert, place))
            for expert in range(experts.experts)
            for part, place in zip(PARTS[kind], rows, strict=True)
        }

    def publish(self, name: str) -> str:
        """Return the published name of one of our tensors. Stacked experts share one name."""
        return _translate(name, {ours: published for published, ours in self.names.items()})


def shadow_mask(n: int, window: slice, attend: Tensor | None, device: torch.device) -> Tensor:
    """Return which columns each query sees, [1 or B, 1, n + W, n + W]: n real columns, then W shadows."""
    width = window.stop - window.start
    visible = torch.ones(n + width, n + width, dtype=torch.bool, device=device)
    visible[:n, n:] = False
    visible[n:, window].fill_diagonal_(False)
    keys = key_mask(attend)
    return visible[None, None] if keys is None else visible & torch.cat([keys, keys[..., window]], dim=-1)


def _fresh(rows: int, columns: int) -> Tensor:
    """Return a random matrix, or an empty one on `meta`, where drawing would import half of torch."""
    weight = torch.empty(rows, columns)
    return weight if weight.is_meta else weight.normal_()


def _translate(key: str, names: Mapping[str, str]) -> str:
    """Rename a key by the table, as a whole or only its module. The number of the layer stays."""
    layer = re.search(r"(?<=\.)\d+(?=\.)", key)
    template = key if layer is None else f"{key[: layer.start()]}{{}}{key[layer.end() :]}"
    number = layer and layer.group()
    if template in names:
        return names[template].format(number)
    module, _, kind = template.rpartition(".")
    return f"{names[module].format(number)}.{kind}" if module in names else key
