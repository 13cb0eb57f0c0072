"""Mixtures of experts in Triton; see `unmask.fast.experts`.

Pairs of a token and one of its experts are sorted into slots of a few rows. A slot holds pairs of one expert
only, so that a program multiplies its rows by one matrix. The number of slots depends only on sizes, so
a CUDA graph can capture a mixture. The programs of an empty slot end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of
from unmask.fast.kernels.quantized import describe, unpack
from unmask.fast.kernels.tiles import GROUP, Tile, count_slots

SORT_PART = 4096  # pairs that a program sorts at a time
EMPTY = -1  # marks an empty slot or an empty row of a slot


def sort_pairs(chosen: Tensor, experts: int, rows: int) -> tuple[Tensor, Tensor]:
    """Sort the pairs of `chosen` [T, k] by expert. Return slots [S, rows] of pairs, and each slot's expert.

    Pair p is choice p % k of token p // k. Pairs of an expert stay in order.
    """
    slots = count_slots(chosen.numel(), experts, rows)
    pairs = torch.empty(slots, rows, dtype=torch.int32, device=chosen.device)
    of_slot = torch.empty(slots, dtype=torch.int32, device=chosen.device)
    with device_of(chosen):
        _sort[(experts,)](
            *(chosen.contiguous(), pairs, of_slot, chosen.numel()),
            ROWS=rows,
            PART=max(16, min(SORT_PART, int(triton.next_power_of_2(chosen.numel())))),
            EMPTY=EMPTY,
            num_warps=8,
        )
    return pairs, of_slot


def expert_product(
    x: Tensor,
    row_scale: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    slots: tuple[Tensor, Tensor],
    count: int,
    tile: Tile,
    *,
    gated: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Multiply the rows of `count` pairs by the matrices [E, out, in] of their experts, into [count, out].

    Each row of x [n, in] belongs to count / n pairs. If `gated`, a matrix holds a gate half and an up half,
    and the result [count, out / 2] is silu(gate) * up. Rows and weights in e4m3 or int8 have scales [n, 1]
    and [E, out]. int4 weights [E, out, in / 2] have scales [E, out, groups], and their rows have none.
    """
    outputs, inputs = weight.shape[1], x.shape[1]
    size = outputs // 2 if gated else outputs
    pairs, of_slot = slots
    out = x.new_empty(count, size, dtype=dtype)
    if not count:
        return out
    source: object = weight
    if tile.copies:
        source = describe(weight.view(-1, weight.shape[2]), tile.outputs, tile.inner)
    grid = len(of_slot), size // tile.outputs
    sizes = {"PAIRS_PER_ROW": count // len(x), "WHOLE": inputs, "SIZE": size, "GATED": gated}
    sizes |= {"ROWS": tile.rows, "OUTPUTS": tile.outputs}
    launch = {"num_warps": tile.warps, "num_stages": tile.stages}
    with device_of(x):
        if weight.dtype == torch.uint8:
            _multiply_int4[grid](
                *(x.contiguous(), weight, scale, pairs, of_slot, out),
                HALF=GROUP // 2,
                ON_GPU=x.is_cuda,
                **sizes,
                **launch,
            )
        else:
            _multiply[grid](
                *(x.contiguous(), row_scale, source, scale, pairs, of_slot, out),
                INNER=tile.inner,
                SCALED=scale is not None,
                COPIES=tile.copies,
                SUM=tl.int32 if weight.dtype == torch.int8 else tl.float32,
                **sizes,
                **launch,
            )
    return out


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sort(  # type: ignore[no-untyped-def]
    chosen,
    pairs,
    of_slot,
    count,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
    EMPTY: tl.constexpr,
):
    """Write the slots of one expert.

    The slots of expert e begin at (pairs of all experts before it) // ROWS + e. This leaves enough slots for
    every expert, whatever the remainder of the division. So no program needs the counts of all experts.
    """
    expert = tl.program_id(0)
    part = tl.arange(0, PART)
    before = tl.zeros((PART,), tl.int32)
    own = tl.zeros((PART,), tl.int32)
    for first in range(0, count, PART):
        number = tl.load(chosen + first + part, first + part < count, 1 << 30)
        before += (number < expert).to(tl.int32)
        own += (number == expert).to(tl.int32)
    start = tl.sum(before)
    size = tl.sum(own)
    slot = start // ROWS + expert
    end = (start + size) // ROWS + expert + 1
    place = slot * ROWS
    for first in range(0, count, PART):
        number = tl.load(chosen + first + part, first + part < count, 1 << 30)
        mine = (number == expert).to(tl.int32)
        tl.store(pairs + place + tl.cumsum(mine, 0) - 1, first + part, mine > 0)
        place += tl.sum(mine)
    rest = place + tl.arange(0, 2 * ROWS)  # there are fewer empty rows than that
    tl.store(pairs + rest, tl.full((2 * ROWS,), EMPTY, tl.int32), rest < end * ROWS)
    for first in range(slot, end, ROWS):
        each = first + tl.arange(0, ROWS)
        tl.store(of_slot + each, tl.where((each - slot) * ROWS < size, expert, EMPTY), each < end)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _multiply(  # type: ignore[no-untyped-def]
    x,
    row_scale,
    weight,
    scale,
    pairs,
    of_slot,
    out,
    PAIRS_PER_ROW: tl.constexpr,
    WHOLE: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
    GATED: tl.constexpr,
    SCALED: tl.constexpr,
    COPIES: tl.constexpr,
    SUM: tl.constexpr,
):
    """Multiply the rows of one slot by some rows of its expert's matrix.

    The weight is the left factor, because the tensor cores need at least 64 rows on the left, but accept few
    columns on the right.
    """
    slot = tl.program_id(0)
    expert = tl.load(of_slot + slot)
    if expert < 0:
        return
    pair = tl.load(pairs + slot * ROWS + tl.arange(0, ROWS))
    is_row = pair >= 0
    row = tl.maximum(pair, 0) // PAIRS_PER_ROW
    column = tl.program_id(1) * OUTPUTS  # the first output
    first = expert * (2 * SIZE if GATED else SIZE) + column  # its row in the weight
    output = tl.arange(0, OUTPUTS)
    k = tl.arange(0, INNER)
    x += row[None, :].to(tl.int64) * WHOLE + k[:, None]
    total = tl.zeros((OUTPUTS, ROWS), SUM)
    up = tl.zeros((OUTPUTS, ROWS), SUM)
    if not COPIES:
        weight += (first + output)[:, None].to(tl.int64) * WHOLE + k[None, :]
    for step in range(0, WHOLE, INNER):
        rows = tl.load(x + step, is_row[None, :], 0.0)
        if COPIES:
            total = tl.dot(weight.load([first, step]), rows, total, out_dtype=SUM)
            if GATED:
                up = tl.dot(weight.load([first + SIZE, step]), rows, up, out_dtype=SUM)
        else:
            total = tl.dot(tl.load(weight + step), rows, total, out_dtype=SUM)
            if GATED:
                up = tl.dot(tl.load(weight + (SIZE * WHOLE + step)), rows, up, out_dtype=SUM)
    result = total.to(tl.float32)
    second = up.to(tl.float32)
    if SCALED:
        of_row = tl.load(row_scale + row, is_row, 0.0)[None, :]
        result = result * tl.load(scale + first + output)[:, None] * of_row
        if GATED:
            second = second * tl.load(scale + first + SIZE + output)[:, None] * of_row
    _store(result, second, out, pair, column + output, SIZE, GATED)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store(  # type: ignore[no-untyped-def]
    result, up, out, pair, output, SIZE: tl.constexpr, GATED: tl.constexpr
):
    """Apply the gate, if any, and write some outputs of some pairs."""
    if GATED:
        result = result / (1.0 + tl.exp(-result)) * up
    place = pair[None, :].to(tl.int64) * SIZE + output[:, None]
    tl.store(out + place, result, (pair >= 0)[None, :])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _multiply_int4(  # type: ignore[no-untyped-def]
    x,
    weight,
    scale,
    pairs,
    of_slot,
    out,
    PAIRS_PER_ROW: tl.constexpr,
    WHOLE: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HALF: tl.constexpr,
    GATED: tl.constexpr,
    ON_GPU: tl.constexpr,
):
    """Compute `_multiply` with packed weights. A byte holds two weights of its group, HALF inputs apart."""
    slot = tl.program_id(0)
    expert = tl.load(of_slot + slot)
    if expert < 0:
        return
    pair = tl.load(pairs + slot * ROWS + tl.arange(0, ROWS))
    is_row = (pair >= 0)[None, :]
    row = tl.maximum(pair, 0) // PAIRS_PER_ROW
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    first = (expert * (2 * SIZE if GATED else SIZE) + column).to(tl.int64)  # its row in the weight
    half = tl.arange(0, HALF)
    x += row[None, :].to(tl.int64) * WHOLE + half[:, None]
    weight += first[:, None] * (WHOLE // 2) + half[None, :]
    scale += first * (WHOLE // (2 * HALF))
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    up = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for group in range(0, WHOLE // (2 * HALF)):
        low = tl.load(x + group * 2 * HALF, is_row, 0.0)
        high = tl.load(x + (group * 2 * HALF + HALF), is_row, 0.0)
        total += _group(tl.load(weight + group * HALF), low, high, ON_GPU) * tl.load(scale + group)[:, None]
        if GATED:
            packed = tl.load(weight + (SIZE * (WHOLE // 2) + group * HALF))
            of_group = tl.load(scale + (SIZE * (WHOLE // (2 * HALF)) + group))
            up += _group(packed, low, high, ON_GPU) * of_group[:, None]
    _store(total, up, out, pair, column, SIZE, GATED)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _group(packed, low, high, ON_GPU: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply packed weights by both halves of the inputs of their group, without the scales."""
    low_weights, high_weights = unpack(packed, low.dtype, ON_GPU)
    return tl.dot(high_weights, high, tl.dot(low_weights, low))
