"""Split-K matrix products whose partial sums are left for the next norm to add.

A product of few columns leaves much of a GPU idle unless the inner dimension is split too. The library adds
up the parts in a separate kernel, which takes as long as the norm that follows. That norm can do both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.fast import kernels

SPLITS = 2  # more splits speed up the product but slow down the sum by as much
UNIT = 64  # a part must be a multiple of the step of the library's kernels
HAS_FLOAT32_BMM = hasattr(torch.ops.aten.bmm, "dtype")  # half precision in, float32 out; since torch 2.8


def can_split(weight: Tensor) -> bool:
    """Return whether to split products with the weight [size, inner]: only on a GPU, in half precision."""
    half = weight.dtype in (torch.bfloat16, torch.float16)
    return HAS_FLOAT32_BMM and weight.is_cuda and half and weight.shape[1] % (UNIT * SPLITS) == 0


def _split_product(x: Tensor, weight: Tensor) -> Tensor:
    size, inner = weight.shape
    columns = x.reshape(-1, inner)
    return _multiply(columns, weight).view(SPLITS, *x.shape[:-1], size)


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply [n, inner] by [size, inner] into [S, n, size] float32."""
    if kernels.multiplies(weight):
        from unmask.fast.kernels.product import fits, product

        if fits(x, weight, SPLITS):
            return product(x, weight, SPLITS)
    left = x.view(len(x), SPLITS, -1).transpose(0, 1)
    right = weight.view(len(weight), SPLITS, -1).permute(1, 2, 0)
    if x.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def _empty(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(SPLITS, *x.shape[:-1], len(weight), dtype=torch.float32)


# Multiplies x [B, n, inner] by the weight [size, inner] into partial sums [S, B, n, size] float32.
# It is a custom op, so that torch.compile does not trace into it.
split_product = torch.library.custom_op(
    "unmask::split_product", _split_product, mutates_args=(), schema="(Tensor x, Tensor weight) -> Tensor"
)
split_product.register_fake(_empty)
