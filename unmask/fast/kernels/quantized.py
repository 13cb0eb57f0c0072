"""Products with narrow weights in Triton, see `unmask.fast.quantized`.

A weight is read as it is stored, and scales are applied before the output is written. With few rows a product
takes as long as its weight takes to arrive; its inner dimension is then split to keep all of a GPU busy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from unmask.fast.kernels import device_of
from unmask.fast.kernels.tiles import GROUP, Tile


def scaled_product(
    x: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, tile: Tile, splits: int, dtype: torch.dtype
) -> Tensor:
    """Return partial sums [splits, n, out] of e4m3 or int8 rows x [n, in] times a weight, with all scales."""
    outputs, inputs = weight.shape
    out = x.new_empty(splits, len(x), outputs, dtype=dtype)
    sources: tuple[object, object] = (x, weight)
    if tile.copies:
        boxes = ([_rows(len(x), tile), tile.inner], [tile.outputs, tile.inner])
        sources = TensorDescriptor.from_tensor(x, boxes[0]), TensorDescriptor.from_tensor(weight, boxes[1])
    with device_of(x):
        (_scaled_copies if tile.copies else _scaled)[_grid(len(x), outputs, tile, splits)](
            *(*sources, row_scale, scale, out, len(x), outputs),
            WHOLE=inputs,
            PART=inputs // splits,
            ROWS=_rows(len(x), tile),
            OUTPUTS=tile.outputs,
            INNER=tile.inner,
            SUM=tl.int32 if weight.dtype == torch.int8 else tl.float32,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def int4_product(
    x: Tensor, weight: Tensor, scale: Tensor, tile: Tile, splits: int, dtype: torch.dtype
) -> Tensor:
    """Return partial sums [splits, n, out] of the rows x [n, in] times a packed weight [out, in / 2]."""
    outputs, groups = scale.shape
    out = x.new_empty(splits, len(x), outputs, dtype=dtype)
    with device_of(x):
        _int4[_grid(len(x), outputs, tile, splits)](
            *(x, weight, scale, out, len(x), outputs),
            GROUPS=groups,
            PART=groups // splits,
            ROWS=_rows(len(x), tile),
            OUTPUTS=tile.outputs,
            HALF=GROUP // 2,
            ON_GPU=x.is_cuda,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def _rows(n: int, tile: Tile) -> int:
    return min(tile.rows, max(16, int(triton.next_power_of_2(n))))


def _grid(n: int, outputs: int, tile: Tile, splits: int) -> tuple[int, int]:
    """Return the programs of a product; those that read the same weights follow each other."""
    return triton.cdiv(n, _rows(n, tile)) * (outputs // tile.outputs), splits


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scaled(  # type: ignore[no-untyped-def]
    x,
    weight,
    row_scale,
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
    """Multiply some rows of x by some rows of the weight, over one part of the inner dimension."""
    row_tiles = tl.cdiv(n, ROWS)
    part = tl.program_id(1)
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) // row_tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    k = part * PART + tl.arange(0, INNER)
    is_row = (row < n)[:, None]
    x += row[:, None].to(tl.int64) * WHOLE + k[None, :]
    weight += output[None, :].to(tl.int64) * WHOLE + k[:, None]
    total = tl.zeros((ROWS, OUTPUTS), SUM)
    for _ in range(0, PART, INNER):
        total = tl.dot(tl.load(x, is_row, 0.0), tl.load(weight), total, out_dtype=SUM)
        x += INNER
        weight += INNER
    _store(total, row_scale, scale, out, part, row, output, n, outputs)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scaled_copies(  # type: ignore[no-untyped-def]
    x,
    weight,
    row_scale,
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
    """Compute `_scaled` with descriptors of x and the weight."""
    row_tiles = tl.cdiv(n, ROWS)
    part = tl.program_id(1)
    first_row = tl.program_id(0) % row_tiles * ROWS
    first_output = tl.program_id(0) // row_tiles * OUTPUTS
    total = tl.zeros((ROWS, OUTPUTS), SUM)
    for k in range(part * PART, (part + 1) * PART, INNER):
        columns = weight.load([first_output, k])
        total = tl.dot(x.load([first_row, k]), columns.T, total, out_dtype=SUM)
    row, output = first_row + tl.arange(0, ROWS), first_output + tl.arange(0, OUTPUTS)
    _store(total, row_scale, scale, out, part, row, output, n, outputs)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store(total, row_scale, scale, out, part, row, output, n, outputs):  # type: ignore[no-untyped-def]
    """Apply the scales to a tile of sums and write it."""
    is_row = row < n
    of_row = tl.load(row_scale + row, is_row, 0.0)
    scaled = total.to(tl.float32) * tl.load(scale + output)[None, :] * of_row[:, None]
    place = (part * n + row[:, None]).to(tl.int64) * outputs + output[None, :]
    tl.store(out + place, scaled, is_row[:, None])


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
    ON_GPU: tl.constexpr,
):
    """Multiply some rows of x by some rows of the packed weight, over some groups.

    A byte holds two weights of its group, HALF inputs apart: both halves are multiplied as they come. The
    weight is the left factor, which the tensor cores take from registers.
    """
    row_tiles = tl.cdiv(n, ROWS)
    part = tl.program_id(1)
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) // row_tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    half = tl.arange(0, HALF)
    first = part * PART
    is_row = (row < n)[None, :]
    x += row[None, :].to(tl.int64) * (GROUPS * 2 * HALF) + first * 2 * HALF + half[:, None]
    weight += output[:, None].to(tl.int64) * (GROUPS * HALF) + first * HALF + half[None, :]
    scale += output * GROUPS + first
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for _ in range(0, PART):
        low, high = tl.load(x, is_row, 0.0), tl.load(x + HALF, is_row, 0.0)
        low_weights, high_weights = unpack(tl.load(weight), low.dtype, ON_GPU)
        group = tl.dot(low_weights, low)
        group = tl.dot(high_weights, high, group)
        total += group * tl.load(scale)[:, None]
        x += 2 * HALF
        weight += HALF
        scale += 1
    place = (part * n + row[None, :]).to(tl.int64) * outputs + output[:, None]
    tl.store(out + place, total, is_row)


# four bytes become two pairs of low halves and two pairs of high ones, as 128 + half; then 136 is subtracted
UNPACK = tl.constexpr("""{
    .reg .b32 a, b, c, d;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    shr.b32 c, a, 4;
    shr.b32 d, b, 4;
    lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
    mov.b32 $0, 0x43084308;
    sub.rn.bf16x2 $1, b, $0;
    sub.rn.bf16x2 $2, c, $0;
    sub.rn.bf16x2 $3, d, $0;
    sub.rn.bf16x2 $0, a, $0;
}""")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def unpack(packed, dtype: tl.constexpr, ON_GPU: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the weights, -8 to 7, in the low and in the high halves of bytes.

    A GPU converts whole numbers slowly. So a half byte becomes the last bits of a float whose last bit counts
    1: of 128 in bfloat16, of 1024 in float16. That and 8 are subtracted afterwards.
    """
    if dtype == tl.bfloat16 and ON_GPU:
        return tl.inline_asm_elementwise(
            UNPACK, "=&r,=&r,=&r,=&r,r", [packed], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    if dtype == tl.bfloat16:
        return _with_offset(packed, dtype, 0x4300, 136.0)
    return _with_offset(packed, dtype, 0x6400, 1032.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _with_offset(  # type: ignore[no-untyped-def]
    packed, dtype: tl.constexpr, OFFSET: tl.constexpr, ZERO: tl.constexpr
):
    """Unpack bytes with the bits of an offset, and subtract the offset and 8."""
    low, high = packed.to(tl.uint16) & 15 | OFFSET, packed.to(tl.uint16) >> 4 | OFFSET
    return low.to(dtype, bitcast=True) - ZERO, high.to(dtype, bitcast=True) - ZERO
