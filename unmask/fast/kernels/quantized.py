"""Products of up to 64 rows with narrow weights in Triton, see `unmask.fast.quantized`.

With few rows a product takes as long as its weight takes to arrive, so a weight is read once, as it is
stored. The inner dimension is split to keep all of a GPU busy. Sums are in float32, or in whole numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of, tiles


def scaled_product(
    x: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, splits: int, dtype: torch.dtype
) -> Tensor:
    """Return partial sums [splits, n, out] of e4m3 or int8 rows x [n, in] times a weight, with all scales."""
    outputs, inputs = weight.shape
    out = x.new_empty(splits, len(x), outputs, dtype=dtype)
    with device_of(x):
        _scaled[(outputs // tiles.OUTPUTS, splits)](
            *(x, row_scale, weight, scale, out, len(x), outputs),
            WHOLE=inputs,
            PART=inputs // splits,
            ROWS=max(16, triton.next_power_of_2(len(x))),
            OUTPUTS=tiles.OUTPUTS,
            INNER=tiles.INNER[weight.dtype],
            SUM=tl.int32 if weight.dtype == torch.int8 else tl.float32,
            num_warps=tiles.WARPS,
            num_stages=tiles.STAGES,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scaled(  # type: ignore[no-untyped-def]
    x,
    row_scale,
    weight,
    scale,
    out,
    n,
    outputs,
    WHOLE: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
    SUM: tl.constexpr,
):
    """Multiply all rows of x by some rows of the weight, over one part of the inner dimension."""
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = part * PART + tl.arange(0, INNER)
    is_row = (row < n)[:, None]
    x += row[:, None] * WHOLE + k[None, :]
    weight += output[None, :].to(tl.int64) * WHOLE + k[:, None]
    total = tl.zeros((ROWS, OUTPUTS), SUM)
    for _ in range(0, PART, INNER):
        total = tl.dot(tl.load(x, is_row, 0.0), tl.load(weight), total, out_dtype=SUM)
        x += INNER
        weight += INNER
    of_row = tl.load(row_scale + row, row < n, 0.0)
    scaled = total.to(tl.float32) * tl.load(scale + output)[None, :] * of_row[:, None]
    tl.store(out + (part * n + row[:, None]) * outputs + output[None, :], scaled, is_row)


def int4_product(x: Tensor, weight: Tensor, scale: Tensor, splits: int, dtype: torch.dtype) -> Tensor:
    """Return partial sums [splits, n, out] of the rows x [n, in] times a packed weight [out, in / 2]."""
    outputs, groups = scale.shape
    out = x.new_empty(splits, len(x), outputs, dtype=dtype)
    with device_of(x):
        _int4[(outputs // tiles.OUTPUTS, splits)](
            *(x, weight, scale, out, len(x), outputs),
            GROUPS=groups,
            PART=groups // splits,
            ROWS=max(16, triton.next_power_of_2(len(x))),
            OUTPUTS=tiles.OUTPUTS,
            HALF=tiles.GROUP // 2,
            num_warps=tiles.WARPS,
            num_stages=tiles.STAGES,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _int4(  # type: ignore[no-untyped-def]
    x,
    weight,
    scale,
    out,
    n,
    outputs,
    GROUPS: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Multiply all rows of x by some rows of the packed weight, over some groups.

    A byte holds two weights of its group, HALF inputs apart: both halves are multiplied as they come.
    """
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    half = tl.arange(0, HALF)
    first = part * PART
    is_row = (row < n)[:, None]
    x += row[:, None] * (GROUPS * 2 * HALF) + first * 2 * HALF + half[None, :]
    weight += output[None, :].to(tl.int64) * (GROUPS * HALF) + first * HALF + half[:, None]
    scale += output * GROUPS + first
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for _ in range(0, PART):
        low, high = tl.load(x, is_row, 0.0), tl.load(x + HALF, is_row, 0.0)
        packed = tl.load(weight).to(tl.int8, bitcast=True)
        # an arithmetic shift keeps the sign that the flip of the top bit, 8 less, has given
        flipped = packed ^ tl.full((HALF, OUTPUTS), -120, tl.int8)
        group = tl.dot(low, ((flipped << 4) >> 4).to(low.dtype))
        group = tl.dot(high, (flipped >> 4).to(low.dtype), group)
        total += group * tl.load(scale)[None, :]
        x += 2 * HALF
        weight += HALF
        scale += 1
    tl.store(out + (part * n + row[:, None]) * outputs + output[None, :], total, is_row)
