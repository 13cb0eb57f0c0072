"""int8: weights with a scale per output channel, inputs with a scale per row, integer sums."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.quantized.linear import SMALLEST, QuantizedLinear, in_parts

LARGEST = 127.0
UNIT = 8  # sizes on a GPU must be multiples of this
FEWEST = 17  # the fewest rows that a GPU multiplies


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x [..., n, in] to int8, symmetric; return it with a float32 scale per row, [..., n, 1].

    Plain torch, so that a compiler fuses it into the norm or the gate before a product.
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return (wide / scale).round().to(torch.int8), scale


class Int8Linear(QuantizedLinear):
    """A linear layer in int8: one byte per weight, integer products."""

    format = "int8"

    @staticmethod
    def empty(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        return torch.empty(outputs, inputs, dtype=torch.int8), torch.empty(outputs, dtype=torch.float32)

    @staticmethod
    def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
        narrow, scale = quantize_rows(weight)
        return narrow, scale[:, 0]

    @staticmethod
    def decode(weight: Tensor, scale: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
        return (weight.float() * scale[:, None]).to(dtype)

    @staticmethod
    def product(x: Tensor, weight: Tensor, scale: Tensor, *, native: bool) -> Tensor:
        narrow, row_scale = quantize_rows(x)
        whole = integer_product if native and fits(weight) else plain_product
        exact = in_parts(whole, narrow, weight, scale) * row_scale
        return exact.to(x.dtype)

    @staticmethod
    def has_products(device: torch.device) -> bool:
        return device.type == "cpu" or (
            device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        )


class Int8Embedding(Int8Linear):
    """An embedding in int8 with a scale per token; also the head of a model that ties both."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up tokens [B, n]; return [B, n, size] float32."""
        return F.embedding(tokens, self.weight) * self.scale[tokens][..., None]

    def logits(self, states: Tensor) -> Tensor:
        """Multiply states [..., size] by the table, into [..., V]."""
        return self.multiply_fn(self, states)


def fits(weight: Tensor) -> bool:
    """Return whether the library can multiply by this weight."""
    return not any(size % UNIT for size in weight.shape)


def integer_product(narrow: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply int8 rows [n, in] by an int8 weight in integers, without the scales of the rows."""
    rows = len(narrow)
    if rows < FEWEST:
        narrow = F.pad(narrow, (0, 0, 0, FEWEST - rows))
    return torch._int_mm(narrow, weight.t())[:rows] * scale


def plain_product(narrow: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Compute `integer_product` in float32, which is exact for sums up to 2^24."""
    return F.linear(narrow.float(), weight.float()) * scale
