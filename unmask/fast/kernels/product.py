"""Split-K matrix product of few columns in half precision; see `unmask.fast.split_products`."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.fast.kernels.quantized import scaled_product
from unmask.fast.kernels.tiles import known_tile, tile_of


def fits(x: Tensor, weight: Tensor, splits: int) -> bool:
    """Whether the kernel can multiply x [n, inner] by the weight [size, inner]."""
    size, inner = weight.shape
    tile = tile_of(weight.dtype, len(x), size)
    if tile is None or size % tile.outputs or inner % (tile.inner * splits):
        return False
    return x.is_contiguous() and weight.is_contiguous()


def product(x: Tensor, weight: Tensor, splits: int) -> Tensor:
    """Return partial sums [splits, n, size] float32 that add up to x times the weight."""
    tile = known_tile(weight.dtype, len(x), len(weight))
    return scaled_product(x, None, weight, None, tile, splits, torch.float32)
