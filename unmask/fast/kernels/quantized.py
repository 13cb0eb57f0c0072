"""Products with quantized weights in Triton; see `unmask.fast.quantized`.

A weight is read in its stored form, and scales are applied before the output is written. With few rows, a
product takes as long as loading its weight. Its inner dimension is then split to keep the whole GPU busy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of
from unmask.fast.kernels.tiles import GROUP, Tile


def scaled_product(
    x: Tensor,
    row_scale: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    tile: Tile,
    splits: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return partial sums [splits, n, out] of rows x [n, in] times a weight [out, in].

    In e4m3 and int8, the scales of rows and weight are applied. In half precision there are no scales.
    """
    outputs, inputs = weight.shape
    out = x.new_empty(splits, len(x), outputs, dtype=dtype)
    sources: tuple[object, object] = (x, weight)
    if tile.copies:
        assert not tile.extra, "the copy engine loads whole tiles"
        sources = (
            describe(x, _rows(len(x), tile), tile.inner),
            describe(weight, tile.outputs, tile.inner),
        )
    with device_of(x):
        _scaled[_grid(len(x), outputs, tile, splits)](
            *(*sources, row_scale, scale, out, len(x), outputs),
            WHOLE=inputs,
            PART=inputs // splits,
            ROWS=_rows(len(x), tile),
            EXTRA=_extra(len(x), tile),
            OUTPUTS=tile.outputs,
            INNER=tile.inner,
            WEIGHT_LEFT=tile.extra > 0,
            COPIES=tile.copies,
            SCALED=scale is not None,
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
            EXTRA=_extra(len(x), tile),
            OUTPUTS=tile.outputs,
            HALF=GROUP // 2,
            ON_GPU=x.is_cuda,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def describe(matrix: Tensor, rows: int, columns: int) -> object:
    """Describe a matrix to the GPU's copy engine, which loads parts of this many rows and columns."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # since Triton 3.4

    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def _rows(n: int, tile: Tile) -> int:
    return min(tile.rows, max(16, int(triton.next_power_of_2(n))))


def _extra(n: int, tile: Tile) -> int:
    return tile.extra if n > tile.rows else 0


def _grid(n: int, outputs: int, tile: Tile, splits: int) -> tuple[int, int]:
    """Return the grid of a product. Programs that read the same weights follow each other."""
    return triton.cdiv(n, _rows(n, tile) + _extra(n, tile)) * (outputs // tile.outputs), splits


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
    EXTRA: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr,
    COPIES: tl.constexpr,
    SCALED: tl.constexpr,
    SUM: tl.constexpr,
):
    """Multiply some rows of x by some rows of the weight, over one part of the inner dimension.

    The tensor cores need at least 64 rows on the left, but accept few columns on the right. So extra rows
    need the weight on the left. They have separate sums, because the size of a tile is a power of two.
    """
    row_tiles = tl.cdiv(n, ROWS + EXTRA)
    part = tl.program_id(1)
    first_row = tl.program_id(0) % row_tiles * (ROWS + EXTRA)
    first_output = tl.program_id(0) // row_tiles * OUTPUTS
    row, output = first_row + tl.arange(0, ROWS), first_output + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INNER)[None, :]
    total = tl.zeros((OUTPUTS, ROWS), SUM) if WEIGHT_LEFT else tl.zeros((ROWS, OUTPUTS), SUM)
    if EXTRA:
        extra_row = first_row + ROWS + tl.arange(0, EXTRA)
        extra_x = x + extra_row[:, None].to(tl.int64) * WHOLE + k
        extra_total = tl.zeros((OUTPUTS, EXTRA), SUM)
    if not COPIES:
        x += row[:, None].to(tl.int64) * WHOLE + k
        weight += output[:, None].to(tl.int64) * WHOLE + k
    for step in range(part * PART, (part + 1) * PART, INNER):
        if COPIES:
            rows, weights = x.load([first_row, step]), weight.load([first_output, step])
        else:
            rows, weights = tl.load(x + step, (row < n)[:, None], 0.0), tl.load(weight + step)
        if WEIGHT_LEFT:
            total = tl.dot(weights, rows.T, total, out_dtype=SUM)
        else:
            total = tl.dot(rows, weights.T, total, out_dtype=SUM)
        if EXTRA:
            extra_rows = tl.load(extra_x + step, (extra_row < n)[:, None], 0.0)
            extra_total = tl.dot(weights, extra_rows.T, extra_total, out_dtype=SUM)
    if WEIGHT_LEFT:
        total = total.T
    _store(total, row_scale, scale, out, part, row, output, n, outputs, SCALED)
    if EXTRA:
        _store(extra_total.T, row_scale, scale, out, part, extra_row, output, n, outputs, SCALED)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _store(  # type: ignore[no-untyped-def]
    total, row_scale, scale, out, part, row, output, n, outputs, SCALED: tl.constexpr
):
    """Apply the scales to a tile of sums [rows, outputs] and write it."""
    is_row = row < n
    scaled = total.to(tl.float32)
    if SCALED:
        of_row = tl.load(row_scale + row, is_row, 0.0)
        scaled = scaled * tl.load(scale + output)[None, :] * of_row[:, None]
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
    EXTRA: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HALF: tl.constexpr,
    ON_GPU: tl.constexpr,
):
    """Multiply some rows of x by some rows of the packed weight, over some groups.

    A byte holds two weights of its group, HALF inputs apart. Both halves are multiplied separately. The
    weight is the left factor, which the tensor cores can read from registers.
    """
    row_tiles = tl.cdiv(n, ROWS + EXTRA)
    part = tl.program_id(1)
    first_row = tl.program_id(0) % row_tiles * (ROWS + EXTRA)
    row = first_row + tl.arange(0, ROWS)
    output = tl.program_id(0) // row_tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    half = tl.arange(0, HALF)
    first = part * PART
    is_row = (row < n)[None, :]
    x += first * 2 * HALF + half[:, None]  # in row 0
    if EXTRA:
        extra_row = first_row + ROWS + tl.arange(0, EXTRA)
        is_extra = (extra_row < n)[None, :]
        extra_x = x + extra_row[None, :].to(tl.int64) * (GROUPS * 2 * HALF)
        extra_total = tl.zeros((OUTPUTS, EXTRA), tl.float32)
    x += row[None, :].to(tl.int64) * (GROUPS * 2 * HALF)
    weight += output[:, None].to(tl.int64) * (GROUPS * HALF) + first * HALF + half[None, :]
    scale += output * GROUPS + first
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for _ in range(0, PART):
        low, high = tl.load(x, is_row, 0.0), tl.load(x + HALF, is_row, 0.0)
        low_weights, high_weights = unpack(tl.load(weight), low.dtype, ON_GPU)
        of_group = tl.load(scale)[:, None]
        total += tl.dot(high_weights, high, tl.dot(low_weights, low)) * of_group
        if EXTRA:
            low, high = tl.load(extra_x, is_extra, 0.0), tl.load(extra_x + HALF, is_extra, 0.0)
            extra_total += tl.dot(high_weights, high, tl.dot(low_weights, low)) * of_group
            extra_x += 2 * HALF
        x += 2 * HALF
        weight += HALF
        scale += 1
    _store(total.T, None, None, out, part, row, output, n, outputs, False)
    if EXTRA:
        _store(extra_total.T, None, None, out, part, extra_row, output, n, outputs, False)


# turns four bytes into two pairs of low halves and two pairs of high halves, as 128 + half, and subtracts 136
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

    A GPU converts integers slowly. So a half byte becomes the last bits of a float whose last bit is worth 1,
    which is 128 in bfloat16 and 1024 in float16. This offset and 8 are subtracted afterwards.
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
    """Unpack bytes into the last bits of an offset, and subtract the offset and 8."""
    low, high = packed.to(tl.uint16) & 15 | OFFSET, packed.to(tl.uint16) >> 4 | OFFSET
    return low.to(dtype, bitcast=True) - ZERO, high.to(dtype, bitcast=True) - ZERO
