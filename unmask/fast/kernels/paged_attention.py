"""Attention to paged keys and values in Triton. `unmask.models.layers.attend` does the same in torch.

Rows of a server differ in length. Each program reads only the pages of its row, up to the last column that
its queries see. So no keys are copied, and a graph serves rows of any length.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of
from unmask.fast.kernels.attention import LOG2_E

MIN_TILE, MAX_TILE = 16, 64  # pairs of a query and a head per program


def attend(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, first: Tensor, ends: Tensor, page: int
) -> Tensor:
    """Attend from queries [B, H, n, D] to a pool of keys and values, [columns, H / groups, D] each.

    `table` [B, P], `first` [B] and `ends` [B, n] are the fields of `unmask.models.layers.Pages`. `page` is
    the number of columns of a page. Return [B, n, H * D].
    """
    rows, heads, n, size = query.shape
    groups = heads // keys.shape[1]
    together = groups if triton.cdiv(n, MIN_TILE) * rows * heads > _processors(query.device) else 1
    pairs = min(MAX_TILE, max(MIN_TILE, triton.next_power_of_2(n * together)))
    out = _empty(query, keys, values, table, first, ends, page)
    with device_of(query):
        _attend[(triton.cdiv(n * together, pairs), rows * heads // together)](
            query,
            keys,
            values,
            table,
            first,
            ends,
            out,
            *(query.stride(0), query.stride(1), query.stride(2)),
            *(keys.stride(0), values.stride(0), table.stride(0), ends.stride(0)),
            n,
            size**-0.5 * LOG2_E,
            HEADS=heads,
            GROUPS=groups,
            TOGETHER=together,
            SIZE=size,
            PAIRS=pairs,
            PAGE=page,
            num_warps=4,
            num_stages=3,
        )
    return out


@cache
def _processors(device: torch.device) -> int:
    """Return how many programs a GPU runs at once."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


def _empty(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, first: Tensor, ends: Tensor, page: int
) -> Tensor:
    """Allocate the output."""
    rows, heads, n, size = query.shape
    return query.new_empty(rows, n, heads * size)


# a custom op, so that torch.compile does not trace into it
attend_to_pages = torch.library.custom_op(
    "unmask::attend_to_pages",
    attend,
    mutates_args=(),
    schema="(Tensor query, Tensor keys, Tensor values, Tensor table, Tensor first, Tensor ends, int page)"
    " -> Tensor",
)
attend_to_pages.register_fake(_empty)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _attend(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    table,
    first,
    ends,
    out,
    query_row,
    query_head,
    query_column,
    key_column,
    value_column,
    table_row,
    ends_row,
    n,
    scale,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    TOGETHER: tl.constexpr,
    SIZE: tl.constexpr,
    PAIRS: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Flash attention for some queries of heads that share keys: a running softmax over a row's pages."""
    row = (tl.program_id(1) // (HEADS // TOGETHER)).to(tl.int64)
    first_head = tl.program_id(1) % (HEADS // TOGETHER) * TOGETHER
    i = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    j = tl.arange(0, PAGE)
    d = tl.arange(0, SIZE)
    column, head = i // TOGETHER, first_head + i % TOGETHER
    is_query = column < n
    place = row * query_row + head[:, None] * query_head + column[:, None] * query_column
    q = tl.load(query + place + d[None, :], is_query[:, None], 0.0)
    begin = tl.load(first + row)
    end = tl.load(ends + row * ends_row + column, is_query, 0)
    last = tl.max(end, 0)
    keys += first_head // GROUPS * SIZE
    values += first_head // GROUPS * SIZE

    peak = tl.full((PAIRS,), -float("inf"), tl.float32)
    total = tl.zeros((PAIRS,), tl.float32)
    acc = tl.zeros((PAIRS, SIZE), tl.float32)
    for page in range(begin // PAGE, (last + PAGE - 1) // PAGE):
        stored = tl.load(table + row * table_row + page).to(tl.int64) * PAGE + j
        own = page * PAGE + j
        is_key = (own >= begin) & (own < last)
        k = tl.load(keys + stored[None, :] * key_column + d[:, None], is_key[None, :], 0.0)
        v = tl.load(values + stored[:, None] * value_column + d[None, :], is_key[:, None], 0.0)
        visible = is_key[None, :] & (own[None, :] < end[:, None])
        score = tl.where(visible, tl.dot(q, k) * scale, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        shift = tl.where(new_peak == -float("inf"), 0.0, new_peak)  # -inf - -inf would be NaN
        weight = tl.exp2(score - shift[:, None])
        rescale = tl.exp2(peak - shift)
        total = total * rescale + tl.sum(weight, 1)
        acc = acc * rescale[:, None] + tl.dot(weight.to(v.dtype), v)
        peak = new_peak
    target = out + (row * n + column[:, None]) * (HEADS * SIZE) + head[:, None] * SIZE + d[None, :]
    tl.store(target, (acc / total[:, None]).to(out.dtype.element_ty), is_query[:, None])
