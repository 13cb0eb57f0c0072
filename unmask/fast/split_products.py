"""A product of few columns in pieces, whose sum is left to whoever adds it to something.

Few columns leave much of a GPU idle unless the inner dimension is shared out too. A library then adds up the
pieces in a kernel of its own, which takes as long as the norm that follows; the norm can do both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.fast import kernels

PIECES = 2  # what more of them gain in the product, they cost in the sum
UNIT = 64  # a piece is a multiple of it, as the library's kernels step through it
WIDENS = hasattr(torch.ops.aten.bmm, "dtype")  # products of half precision into float32, from torch 2.8 on


def cuttable(weight: Tensor) -> bool:
    """Whether a product with the weight [size, inner] gains by it: on a GPU, in half precision."""
    half = weight.dtype in (torch.bfloat16, torch.float16)
    return WIDENS and weight.is_cuda and half and weight.shape[1] % (UNIT * PIECES) == 0


def _in_pieces(x: Tensor, weight: Tensor) -> Tensor:
    size, inner = weight.shape
    columns = x.reshape(-1, inner)
    return _multiply(columns, weight).view(PIECES, *x.shape[:-1], size)


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    """[n, inner] times [size, inner], [S, n, size] float32."""
    if kernels.multiplies(weight):
        from unmask.fast.kernels.product import fits, product

        if fits(x, weight, PIECES):
            return product(x, weight, PIECES)
    left = x.view(len(x), PIECES, -1).transpose(0, 1)
    right = weight.view(len(weight), PIECES, -1).permute(1, 2, 0)
    if x.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def _empty(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(PIECES, *x.shape[:-1], len(weight), dtype=torch.float32)


# x [B, n, inner] times the weight [size, inner] in pieces to be added, [S, B, n, size] float32;
# an operation of its own, which torch.compile does not look into
in_pieces = torch.library.custom_op(
    "unmask::in_pieces", _in_pieces, mutates_args=(), schema="(Tensor x, Tensor weight) -> Tensor"
)
in_pieces.register_fake(_empty)
