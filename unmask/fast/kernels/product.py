"""Split-K matrix product of up to 64 columns in Triton, see `unmask.fast.split_products`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of

COLUMNS = 64  # the most that one program multiplies
OUTPUTS, INNER = 64, 128  # outputs per program, inner dimension per step


def fits(x: Tensor, weight: Tensor, splits: int) -> bool:
    """Whether the kernel can multiply x [n, inner] with the weight [size, inner]."""
    size, inner = weight.shape
    aligned = size % OUTPUTS == 0 and inner % (INNER * splits) == 0
    return len(x) <= COLUMNS and aligned and x.is_contiguous() and weight.is_contiguous()


def product(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    """Return partial sums [splits, n, size] float32 that add up to x times the weight."""
    size, inner = weight.shape
    out = x.new_empty(splits, len(x), size, dtype=torch.float32)
    with device_of(x):
        _product[(size // OUTPUTS, splits)](
            *(x, weight, out, len(x), size),
            WHOLE=inner,
            PART=inner // splits,
            ROWS=max(16, triton.next_power_of_2(len(x))),
            OUTPUTS=OUTPUTS,
            INNER=INNER,
            num_warps=4,
            num_stages=4,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    n,
    size,
    WHOLE: tl.constexpr,
    PART: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
):
    """Multiply all rows of x by some rows of the weight, over one part of the inner dimension."""
    part = tl.program_id(1)
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = part * PART + tl.arange(0, INNER)
    is_row = (row < n)[:, None]
    x += row[:, None] * WHOLE + k[None, :]
    weight += output[None, :].to(tl.int64) * WHOLE + k[:, None]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for _ in range(0, PART, INNER):
        total = tl.dot(tl.load(x, is_row, 0.0), tl.load(weight), total)
        x += INNER
        weight += INNER
    tl.store(out + (part * n + row[:, None]) * size + output[None, :], total, is_row)
