"""Attention of short canvases in Triton; `unmask.models.layers.attend` says the same in torch.

A library's kernel is made for thousands of columns. At a few hundred, what surrounds it costs as much as the
kernel: keys repeated for grouped heads, the output copied into the layout of the next product, memory set to
zero. This one reads the keys of a group where they are and writes what the next product reads.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of

LOG2_E = 1.4426950408889634
TILE = 64, 64  # queries and keys of a piece of work
SMALL = 16, 128  # the same where all pieces find room on the GPU at once, and a piece in its shared memory
SMALL_BYTES = 139264


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """What the queries [B, H, n, D] see of keys and values [B, H / groups, N, D], [B, n, H * D].

    `mask` [B, 1, 1, N] says which keys a row may see, at least one; None: all. The numbers of a head must lie
    side by side.
    """
    rows, heads, n, size = query.shape
    out = _empty(query, key, value, mask)
    queries, keys = _tile(query)
    with device_of(query):
        _attend[(triton.cdiv(n, queries), rows * heads)](
            query,
            key,
            value,
            query if mask is None else mask.contiguous(),
            out,
            *(query.stride(0), query.stride(1), query.stride(2)),
            *(key.stride(0), key.stride(1), key.stride(2)),
            *(value.stride(0), value.stride(1), value.stride(2)),
            n,
            size**-0.5 * LOG2_E,
            COLUMNS=key.shape[2],
            HEADS=heads,
            GROUPS=heads // key.shape[1],
            SIZE=size,
            MASKED=mask is not None,
            QUERIES=queries,
            KEYS=keys,
            num_warps=4,
            num_stages=3,
        )
    return out


def _tile(query: Tensor) -> tuple[int, int]:
    """How many queries and keys a piece of work has."""
    rows, heads, n, _ = query.shape
    return SMALL if triton.cdiv(n, SMALL[0]) * rows * heads <= _places(query.device) else TILE


@cache
def _places(device: torch.device) -> int:
    """How many small pieces of work a GPU does at once."""
    if device.type != "cuda":
        return 0
    gpu = torch.cuda.get_device_properties(device)
    room = getattr(gpu, "shared_memory_per_block_optin", 0) >= SMALL_BYTES
    return gpu.multi_processor_count if room else 0


def _empty(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Room for the answer."""
    rows, heads, n, size = query.shape
    return query.new_empty(rows, n, heads * size)


# an operation of its own, which torch.compile does not look into
fused_attend = torch.library.custom_op(
    "unmask::attend",
    attend,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor? mask) -> Tensor",
)
fused_attend.register_fake(_empty)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    mask,
    out,
    query_row,
    query_head,
    query_column,
    key_row,
    key_head,
    key_column,
    value_row,
    value_head,
    value_column,
    n,
    scale,
    COLUMNS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    MASKED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Some queries of one head: a softmax over the keys, piece by piece, as flash attention has it."""
    row = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    j = tl.arange(0, KEYS)
    d = tl.arange(0, SIZE)
    asked = (i < n)[:, None]
    q = tl.load(query + row * query_row + head * query_head + i[:, None] * query_column + d, asked, 0.0)
    key += row * key_row + head // GROUPS * key_head
    value += row * value_row + head // GROUPS * value_head

    peak = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, SIZE), tl.float32)
    for start in range(0, COLUMNS, KEYS):
        column = start + j
        there = column < COLUMNS
        k = tl.load(key + column[None, :] * key_column + d[:, None], there[None, :], 0.0)
        v = tl.load(value + column[:, None] * value_column + d[None, :], there[:, None], 0.0)
        seen = there
        if MASKED:
            seen = there & (tl.load(mask + row * COLUMNS + column, there, 0) != 0)
        score = tl.where(seen[None, :], tl.dot(q, k) * scale, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        shift = tl.where(higher == -float("inf"), 0.0, higher)  # -inf - -inf would be no number
        weight = tl.exp2(score - shift[:, None])
        fade = tl.exp2(peak - shift)
        total = total * fade + tl.sum(weight, 1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v)
        peak = higher
    place = out + (row * n + i[:, None]) * (HEADS * SIZE) + head * SIZE + d[None, :]
    tl.store(place, (mixed / total[:, None]).to(out.dtype.element_ty), asked)
