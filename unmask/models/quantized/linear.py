"""The linear layer that all formats share: a quantized weight, its scales, and a product.

`unmask.compile` replaces `multiply_fn` with a faster one. This module depends on no format, file or family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

PART = 16384  # output channels to widen at a time, so that a vocabulary-sized layer needs no full copy
SMALLEST = 1e-12  # lower bound of a row's largest value, so that a row of zeros has a scale too
MultiplyFn = Callable[["QuantizedLinear", Tensor], Tensor]  # see `multiply`


class QuantizedLinear(nn.Module):
    """A linear layer with a quantized weight. Outputs have the dtype of the inputs.

    A format has four functions: `empty`, `encode`, `decode` and `product`. Each accepts or returns a weight
    and its scales, whose first dimension is the output channel.
    """

    format: ClassVar[str]
    weight: Tensor
    scale: Tensor  # float32

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        weight, scale = self.empty(outputs, inputs)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.multiply_fn: MultiplyFn = multiply  # unmask.compile sets this and the next two
        self.native: bool | None = None  # whether the device multiplies this format itself; None means ask it
        self.has_kernel = False  # whether one of our kernels can multiply on its device

    @staticmethod
    def empty(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        """Return an empty weight and its scales."""
        raise NotImplementedError

    @staticmethod
    def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize a weight [out, in]; return it with its scales."""
        raise NotImplementedError

    @staticmethod
    def decode(weight: Tensor, scale: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
        """Return the approximate weight [out, in] that a quantized one represents."""
        raise NotImplementedError

    @staticmethod
    def product(x: Tensor, weight: Tensor, scale: Tensor, *, native: bool) -> Tensor:
        """Multiply x [n, in] by a weight into [n, out]. `native` uses the device's own quantized products."""
        raise NotImplementedError

    @staticmethod
    def has_products(device: torch.device) -> bool:
        """Return whether a device multiplies this format itself."""
        return False

    def forward(self, x: Tensor) -> Tensor:
        output = self.multiply_fn(self, x)
        return output if self.bias is None else output + self.bias

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move with the model, but keep the narrow dtypes. `model.to(dtype)` changes only the bias."""
        narrow = {id(self.weight): self.weight, id(self.scale): self.scale}
        return super()._apply(  # type: ignore[no-untyped-call, unused-ignore]
            lambda tensor: tensor.to(fn(tensor[:0]).device) if id(tensor) in narrow else fn(tensor), recurse
        )


def multiply(layer: QuantizedLinear, x: Tensor) -> Tensor:
    """Multiply x [..., in] by the weight of a layer, without its bias."""
    native = layer.has_products(x.device) if layer.native is None else layer.native
    product = layer.product(x.reshape(-1, layer.inputs), layer.weight, layer.scale, native=native)
    return product.view(*x.shape[:-1], layer.outputs)


def in_parts(product: Callable[..., Tensor], x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Compute a product for some output channels at a time."""
    if len(weight) <= PART:
        return product(x, weight, scale)
    parts = zip(torch.split(weight, PART), torch.split(scale, PART), strict=True)
    return torch.cat([product(x, *part) for part in parts], dim=-1)


class JoinedQuantized:
    """Quantized layers with the same input, joined into one; see `unmask.models.layers.Joined`."""

    def __init__(self, layer: QuantizedLinear, sizes: list[int]) -> None:
        self.layer = layer
        self.sizes = sizes  # outputs of each layer

    @staticmethod
    def of(*layers: QuantizedLinear) -> JoinedQuantized:
        """Join layers of one format, whose weights become views of one weight."""
        first, sizes = layers[0], [layer.outputs for layer in layers]
        with torch.device("meta"):
            joined = type(first)(first.inputs, sum(sizes), bias=first.bias is not None)
        for name in ("weight", "scale"):
            whole = torch.cat([getattr(layer, name) for layer in layers])
            for layer, part in zip(layers, torch.split(whole, sizes), strict=True):
                setattr(layer, name, part)
            setattr(joined, name, whole)
        biases = [layer.bias.data for layer in layers if layer.bias is not None]
        joined.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
        return JoinedQuantized(joined, sizes)

    def __call__(self, x: Tensor) -> Sequence[Tensor]:
        return torch.split(self.layer(x), self.sizes, dim=-1)


def quantized_layers(model: nn.Module) -> list[QuantizedLinear]:
    """Return every quantized layer of a model, and every joined one."""
    own = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    joined = [getattr(module, "joined", None) for module in model.modules()]
    return list(chain(own, (each.layer for each in joined if isinstance(each, JoinedQuantized))))
