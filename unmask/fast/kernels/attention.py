"""Attention over short canvases in Triton; `unmask.models.layers.attend` computes the same in torch.

Library kernels are built for thousands of columns. At a few hundred, the work around them costs as much as
the kernel itself: repeating keys for grouped heads, copying the output into the layout of the next product,
zeroing memory. This kernel reads the keys of a group in place and writes the layout of the next product.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of

LOG2_E = 1.4426950408889634
TILE = 64, 64  # queries per program, and keys per step
FEW = 16, 64  # the same for blocks of a few columns
SMALL = 16, 128  # used if all programs fit on the GPU at once and each fits in shared memory
SMALL_BYTES = 139264


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attend from queries [B, H, n, D] to keys and values [B, H / groups, N, D]; return [B, n, H * D].

    `mask` [1 or B, 1, 1 or n, N] is True on the keys that a query may attend to, at least one. Without a
    mask, queries attend to all keys. The last dimension of queries, keys and values must be contiguous.
    """
    rows, heads, n, size = query.shape
    out = _empty(query, key, value, mask)
    queries, keys = _tile(query)
    with device_of(query):
        _attend[(triton.cdiv(n, queries), rows * heads)](
            query,
            key,
            value,
            query if mask is None else mask,
            out,
            *(query.stride(0), query.stride(1), query.stride(2)),
            *(key.stride(0), key.stride(1), key.stride(2)),
            *(value.stride(0), value.stride(1), value.stride(2)),
            *_mask_strides(mask),
            n,
            size**-0.5 * LOG2_E,
            COLUMNS=key.shape[2],
            HEADS=heads,
            GROUPS=heads // key.shape[1],
            SIZE=size,
            MASKED=mask is not None,
            BY_QUERY=mask is not None and mask.shape[2] > 1,
            QUERIES=queries,
            KEYS=keys,
            num_warps=4,
            num_stages=3,
        )
    return out


def _tile(query: Tensor) -> tuple[int, int]:
    """Return the number of queries per program and of keys per step."""
    rows, heads, n, _ = query.shape
    if triton.cdiv(n, SMALL[0]) * rows * heads <= _max_small_programs(query.device):
        return SMALL
    return FEW if n <= FEW[0] else TILE


def _mask_strides(mask: Tensor | None) -> tuple[int, int, int]:
    """Return the strides of a mask's rows, queries and keys; 0 where it is the same for all."""
    if mask is None:
        return 0, 0, 0
    row, query = (mask.stride(dim) if mask.shape[dim] > 1 else 0 for dim in (0, 2))
    return row, query, mask.stride(3)


@cache
def _max_small_programs(device: torch.device) -> int:
    """Return how many programs with small tiles a GPU runs at once."""
    if device.type != "cuda":
        return 0
    gpu = torch.cuda.get_device_properties(device)
    room = getattr(gpu, "shared_memory_per_block_optin", 0) >= SMALL_BYTES
    return gpu.multi_processor_count if room else 0


def _empty(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Allocate the output."""
    rows, heads, n, size = query.shape
    return query.new_empty(rows, n, heads * size)


# a custom op, so that torch.compile does not trace into it
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
    mask_row,
    mask_query,
    mask_column,
    n,
    scale,
    COLUMNS: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    MASKED: tl.constexpr,
    BY_QUERY: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Flash attention for one tile of queries of one head: a running softmax over tiles of keys."""
    row = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    i = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    j = tl.arange(0, KEYS)
    d = tl.arange(0, SIZE)
    is_query = (i < n)[:, None]
    q = tl.load(query + row * query_row + head * query_head + i[:, None] * query_column + d, is_query, 0.0)
    key += row * key_row + head // GROUPS * key_head
    value += row * value_row + head // GROUPS * value_head

    peak = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, SIZE), tl.float32)
    for start in range(0, COLUMNS, KEYS):
        column = start + j
        is_key = column < COLUMNS
        k = tl.load(key + column[None, :] * key_column + d[:, None], is_key[None, :], 0.0)
        v = tl.load(value + column[:, None] * value_column + d[None, :], is_key[:, None], 0.0)
        visible = is_key[None, :]
        if BY_QUERY:
            visible = is_query & visible
            place = i[:, None] * mask_query + column[None, :] * mask_column
            visible = visible & (tl.load(mask + row * mask_row + place, visible, 0) != 0)
        elif MASKED:
            place = row * mask_row + column * mask_column
            visible = (is_key & (tl.load(mask + place, is_key, 0) != 0))[None, :]
        score = tl.where(visible, tl.dot(q, k) * scale, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        shift = tl.where(new_peak == -float("inf"), 0.0, new_peak)  # -inf - -inf would be NaN
        weight = tl.exp2(score - shift[:, None])
        rescale = tl.exp2(peak - shift)
        total = total * rescale + tl.sum(weight, 1)
        acc = acc * rescale[:, None] + tl.dot(weight.to(v.dtype), v)
        peak = new_peak
    target = out + (row * n + i[:, None]) * (HEADS * SIZE) + head * SIZE + d[None, :]
    tl.store(target, (acc / total[:, None]).to(out.dtype.element_ty), is_query)
