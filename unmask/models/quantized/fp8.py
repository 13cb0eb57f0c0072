"""fp8: weights in e4m3 with a scale per output channel, inputs in e4m3 with a scale per row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.quantized.linear import SMALLEST, QuantizedLinear, in_parts

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # the largest value of e4m3
UNIT = 16  # the library's sizes must be multiples of this
FAST_SUMS = True  # add up in the tensor cores' own precision, as fp8 libraries do


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x [..., n, in] to e4m3; return it with a float32 scale per row, [..., n, 1].

    Plain torch, so that a compiler fuses it into the norm or the gate before a product.
    """
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / LARGEST
    return (wide / scale).to(E4M3), scale


def fits(weight: Tensor) -> bool:
    """Return whether the library can multiply by this weight."""
    return not any(size % UNIT for size in weight.shape)


class FP8Linear(QuantizedLinear):
    """A linear layer in fp8: one byte per weight, and twice the speed of arithmetic on Hopper and Ada."""

    format = "fp8"

    @staticmethod
    def empty(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        return torch.empty(outputs, inputs, dtype=E4M3), torch.empty(outputs, dtype=torch.float32)

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
        if native and fits(weight):
            return scaled_product(narrow, row_scale, weight, scale).to(x.dtype)
        exact = in_parts(plain_product, narrow, weight, scale) * row_scale
        return exact.to(x.dtype)

    @staticmethod
    def has_products(device: torch.device) -> bool:
        return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def scaled_product(narrow: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply e4m3 rows [n, in] by an e4m3 weight on the tensor cores, into [n, out] bfloat16."""
    product: Tensor = torch._scaled_mm(
        narrow,
        weight.t(),
        scale_a=row_scale,
        scale_b=scale[None],
        out_dtype=torch.bfloat16,
        use_fast_accum=FAST_SUMS,
    )
    return product


def plain_product(narrow: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply e4m3 rows [n, in] by an e4m3 weight in float32, without the scales of the rows."""
    return F.linear(narrow.float(), weight.float()) * scale
