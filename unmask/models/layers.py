"""The layers that all families share. They only use tensors and depend on no family, file or cache policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.quantized.linear import JoinedQuantized, QuantizedLinear
from unmask.types import BlockGrid

Rope = tuple[Tensor, Tensor]  # cosine and sine, [1 or B, 1, n, rotated columns of a head / 2] float32
Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # gets new keys and values, and returns all
LinearFn = Callable[[nn.Module, Tensor], Tensor]  # see `linear`
PAGE = 64  # columns of a page of keys and values


class Pages(NamedTuple):
    """Where a shared pool stores the keys and values of each row, and which of them a query sees."""

    table: Tensor  # [B, P], the pages of each row, in the order of its columns
    first: Tensor  # [B], the first column of each row that is not padding
    ends: Tensor  # [B, n], a query sees the columns from `first` up to, but excluding, this one; at least one


Mask = Tensor | Pages | None  # which keys each query sees; None means all
AttentionFn = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]  # see `attend`


class RMSNorm(nn.Module):
    """Add a change to the residual stream x [B, n, size] and norm the sum by its root mean square.

    Returns the sum and the normed sum, which has the weight's dtype. The change may come as unsummed parts,
    [S, B, n, size].
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        x = x + (change.sum(0) if change.dim() > x.dim() else change)
        weight = self.weight.to(x.dtype)
        return x, F.rms_norm(x, weight.shape, weight, self.eps).to(self.weight.dtype)


def rotary(positions: Tensor, rotated: int, theta: float) -> Rope:
    """Return the cosine and sine of every position's rotation in float32, for `rotated` columns of a head."""
    exponent = torch.arange(0, rotated, 2, device=positions.device, dtype=torch.float32) / rotated
    angle = positions[:, None, :, None].float() * (1.0 / theta**exponent)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the first R dimensions of x [B, H, n, D]: dimension i pairs with i + R / 2."""
    cosine, sine = rope
    rotated = 2 * cosine.shape[-1]
    left, right = x[..., :rotated].float().chunk(2, dim=-1)
    turned = torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(x.dtype)
    return turned if rotated == x.shape[-1] else torch.cat((turned, x[..., rotated:]), dim=-1)


def own_dtype(weight: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off for a frozen model, whose texts must not depend on it. Training may use it."""
    kind = weight.device.type
    if weight.requires_grad or weight.is_meta or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def key_mask(attend: Tensor | None) -> Tensor | None:
    """Return which keys the queries of a row may see, [B, 1, 1, N]; every row keeps at least one."""
    if attend is None:
        return None
    # a row of padding only would have an empty softmax, which older torch turns into NaN
    return (attend | ~attend.any(-1, keepdim=True))[:, None, None]


def block_numbers(grid: BlockGrid, tokens: Tensor, attend: Tensor | None) -> Tensor:
    """Return the block of every column, [1 or B, N]."""
    if attend is None or grid.origin == "canvas":
        place = torch.arange(tokens.shape[1], device=tokens.device)[None]
    else:
        place = attend.cumsum(-1) - 1
    return (place - grid.offset) // grid.length


def block_mask(blocks: Tensor, attend: Tensor | None, columns: slice | Tensor) -> Tensor:
    """Return which keys the queries of `columns` see by their blocks, [1 or B, 1, n, N]."""
    visible = blocks[:, None, None] <= blocks[:, None, columns, None]
    keys = key_mask(attend)
    if attend is None or keys is None:
        return visible
    # padding sees every key, because a query without keys would have an empty softmax
    return (visible | ~attend[:, None, columns, None]) & keys


def gather_pages(key: Tensor, value: Tensor, pages: Pages) -> tuple[Tensor, Tensor, Tensor]:
    """Gather the rows' keys and values from a pool. Return them, [B, H, N, D] each, and the mask."""
    column = torch.arange(pages.table.shape[1] * PAGE, device=key.device)
    place = pages.table[:, column // PAGE] * PAGE + column % PAGE
    # Read the blank page 0 after the last column, where another row may have left NaN: zero times NaN is NaN.
    place = torch.where(column < pages.ends.amax(1, keepdim=True), place, 0).flatten()
    rows = len(pages.table)
    key, value = (
        side.index_select(0, place).view(rows, -1, *side.shape[1:]).transpose(1, 2) for side in (key, value)
    )
    seen = (column >= pages.first[:, None, None]) & (column < pages.ends[:, :, None])
    return key, value, seen[:, None]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Attend from queries [B, H, n, D] to keys and values [B, H / groups, N, D]; return [B, n, H * D].

    With pages, keys and values are those of a pool, [columns, H / groups, D].
    """
    if isinstance(mask, Pages):
        key, value, mask = gather_pages(key, value, mask)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # with a mask, enable_gqa would not use the fast kernels
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


class Joined:
    """Linear layers with the same input, joined into one matrix, which uses a GPU better if rows are few."""

    def __init__(self, weight: Tensor, bias: Tensor | None, sizes: list[int]) -> None:
        self.weight = weight
        self.bias = bias
        self.sizes = sizes  # outputs of each layer

    @staticmethod
    def of(*layers: nn.Module) -> Joined | None:
        """Join nn.Linear layers, whose weights become views of one matrix. Return None for other layers."""
        plain = [layer for layer in layers if type(layer) is nn.Linear]
        if len(plain) < len(layers):
            return None
        sizes = [layer.out_features for layer in plain]
        weight = torch.cat([layer.weight.data for layer in plain])
        for layer, part in zip(plain, torch.split(weight, sizes), strict=True):
            layer.weight.data = part
        biases = [layer.bias.data for layer in plain if layer.bias is not None]
        return Joined(weight, torch.cat(biases) if biases else None, sizes)

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        return torch.split(F.linear(x, self.weight, self.bias), self.sizes, dim=-1)


def join(*layers: nn.Module) -> Joined | JoinedQuantized | None:
    """Join layers with the same input, or return None if they cannot be joined."""
    kinds = {type(layer) for layer in layers}
    quantized = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    return (
        JoinedQuantized.of(*quantized)
        if len(quantized) == len(layers) and len(kinds) == 1
        else Joined.of(*layers)
    )


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`. A replacement may return unsummed partial products [S, B, n, size]."""
    output: Tensor = layer(x)
    return output


class Attention(nn.Module):
    """Grouped-query attention. `mask` says which keys a query sees. Without one, it sees all keys.

    `fused` stores the weights of queries, keys and values as one matrix. With `norm_eps`, each query and key
    head is normed before its rotation.
    """

    def __init__(
        self,
        size: int,
        *,
        heads: int,
        key_heads: int,
        head_size: int,
        bias: bool,
        fused: bool = False,
        norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.head_size = head_size
        self.sizes = [heads * head_size, key_heads * head_size, key_heads * head_size]
        if fused:
            self.query_key_value = nn.Linear(size, sum(self.sizes), bias=bias)
        else:
            self.query, self.key, self.value = (nn.Linear(size, each, bias=bias) for each in self.sizes)
        self.output = nn.Linear(heads * head_size, size, bias=False)
        if norm_eps is not None:
            self.query_norm, self.key_norm = (nn.RMSNorm(head_size, eps=norm_eps) for _ in range(2))
        self.fused, self.normed = fused, norm_eps is not None
        self.joined: Joined | JoinedQuantized | None = None
        self.attention_fn: AttentionFn = attend  # unmask.compile replaces this and linear_fn with faster ones
        self.linear_fn: LinearFn = linear

    def join(self) -> None:
        """Compute queries, keys and values in one product from now on."""
        if not self.fused:
            self.joined = join(self.query, self.key, self.value)

    def project(self, x: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values, [B, n, H * D] each."""
        if self.fused:
            return torch.split(self.query_key_value(x), self.sizes, dim=-1)
        if self.joined is not None:
            return self.joined(x)
        return self.query(x), self.key(x), self.value(x)

    def heads(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, H, n, D] each; queries and keys are normed and rotated."""
        query, key, value = map(self._split, self.project(x))
        if self.normed:
            query, key = self.query_norm(query), self.key_norm(key)
        return rotate(query, rope), rotate(key, rope), value

    def forward(self, x: Tensor, rope: Rope, mask: Mask, store: Store | None) -> Tensor:
        query, key, value = self.heads(x, rope)
        if store is not None:
            key, value = store(key, value)
        if isinstance(mask, Tensor):
            mask = mask[..., : key.shape[2]]  # a cache may end before the canvas does
        return self.linear_fn(self.output, self.attention_fn(query, key, value, mask))

    def weights(self, x: Tensor, rope: Rope, mask: Tensor | None) -> Tensor:
        """Return how much each query attends to each key, averaged over all heads, [B, n, n] float32."""
        query, key = (part.float() for part in self.heads(x, rope)[:2])
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        score = query @ key.mT / self.head_size**0.5
        if mask is not None:
            score = score.masked_fill(~mask, -torch.inf)
        weights: Tensor = score.softmax(-1).mean(1)
        return weights

    def _split(self, x: Tensor) -> Tensor:
        """[B, n, H * D] -> [B, H, n, D]."""
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)


class SwiGLU(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(size, hidden, bias=False)
        self.up = nn.Linear(size, hidden, bias=False)
        self.down = nn.Linear(hidden, size, bias=False)
        self.joined: Joined | JoinedQuantized | None = None
        self.linear_fn: LinearFn = linear  # unmask.compile replaces it with a faster one

    def join(self) -> None:
        """Compute the gate and up halves in one product from now on."""
        self.joined = join(self.gate, self.up)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (self.gate(x), self.up(x)) if self.joined is None else self.joined(x)
        return self.linear_fn(self.down, F.silu(gate) * up)
