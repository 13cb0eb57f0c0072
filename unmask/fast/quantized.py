"""Products of a compiled model with quantized weights.

Input rows are quantized in plain torch, which the compiler fuses into the preceding norm or gate. The library
computes the product itself, or one of our kernels where that is faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.fast import kernels
from unmask.fast.kernels.tiles import Tile, known_tile, tile_of
from unmask.models.quantized import fp8, int8
from unmask.models.quantized.int4 import Int4Linear, Int4PairLinear
from unmask.models.quantized.linear import QuantizedLinear, quantized_layers
from unmask.models.quantized.linear import multiply as plain_multiply
from unmask.models.trunk import Trunk

QUANTIZE_ROWS: dict[torch.dtype, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    fp8.E4M3: fp8.quantize_rows,
    torch.int8: int8.quantize_rows,
}


def use_quantized_products(model: Trunk) -> None:
    """Let every quantized layer of a model multiply in the fastest way on its device."""
    for layer in quantized_layers(model):
        layer.native = layer.has_products(layer.weight.device)
        layer.has_kernel = kernels.multiplies_narrow(layer.weight, model.norm.weight.dtype)
        layer.multiply_fn = multiply


def multiply(layer: QuantizedLinear, x: Tensor) -> Tensor:
    """Multiply x [..., in] by the weight of a layer, without its bias."""
    rows = x.reshape(-1, layer.inputs)
    if tile_for(layer, len(rows), split=False) is None:
        return plain_multiply(layer, x)
    return partial_products(layer, rows, splits=1, dtype=x.dtype).view(*x.shape[:-1], layer.outputs)


def split_multiply(layer: QuantizedLinear, x: Tensor) -> Tensor:
    """Return `layer(x)`, as partial sums [S, ..., out] float32 if that is faster."""
    rows = x.reshape(-1, layer.inputs)
    tile = None if layer.bias is not None else tile_for(layer, len(rows), split=True)
    if tile is None or tile.splits == 1:
        output: Tensor = layer(x)
        return output
    parts = partial_products(layer, rows, splits=tile.splits, dtype=torch.float32)
    return parts.view(tile.splits, *x.shape[:-1], layer.outputs)


def tile_for(layer: QuantizedLinear, rows: int, *, split: bool) -> Tile | None:
    """Return the tile with which our kernels multiply `rows` rows, or None to leave them to the library."""
    tile = tile_of(layer.weight.dtype, rows, layer.outputs) if layer.has_kernel else None
    if tile is None or layer.outputs % tile.outputs:
        return None
    return None if layer.inputs % (tile.inner * (tile.splits if split else 1)) else tile


def partial_products(layer: QuantizedLinear, rows: Tensor, *, splits: int, dtype: torch.dtype) -> Tensor:
    """Multiply rows [n, in] by a layer's weight, split along the inner dimension: [splits, n, out]."""
    if isinstance(layer, Int4PairLinear):
        rows = torch.cat((rows, rows), dim=1)
    if isinstance(layer, Int4Linear):
        product: Tensor = int4_product(rows, layer.weight, layer.scale, splits, dtype)
        return product
    narrow, row_scale = QUANTIZE_ROWS[layer.weight.dtype](rows)
    scaled: Tensor = scaled_product(narrow, row_scale, layer.weight, layer.scale, splits, dtype)
    return scaled


def _scaled_product(
    x: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, splits: int, dtype: torch.dtype
) -> Tensor:
    from unmask.fast.kernels.quantized import scaled_product

    tile = known_tile(weight.dtype, len(x), len(weight))
    return scaled_product(x, row_scale, weight, scale, tile, splits, dtype)


def _int4_product(x: Tensor, weight: Tensor, scale: Tensor, splits: int, dtype: torch.dtype) -> Tensor:
    from unmask.fast.kernels.quantized import int4_product

    tile = known_tile(weight.dtype, len(x), len(weight))
    return int4_product(x, weight, scale, tile, splits, dtype)


# custom ops, so that torch.compile does not trace into them
scaled_product = torch.library.custom_op(
    "unmask::scaled_product",
    _scaled_product,
    mutates_args=(),
    schema="(Tensor x, Tensor row_scale, Tensor weight, Tensor scale, int splits, ScalarType dtype)"
    " -> Tensor",
)
int4_product = torch.library.custom_op(
    "unmask::int4_product",
    _int4_product,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor scale, int splits, ScalarType dtype) -> Tensor",
)


@scaled_product.register_fake
def _(x: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor, splits: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty(splits, len(x), len(weight), dtype=dtype)


@int4_product.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor, splits: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty(splits, len(x), len(weight), dtype=dtype)
