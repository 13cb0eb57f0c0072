"""int4: only weights are quantized, in groups of 128 inputs with a scale each, two weights per byte.

Byte j of a group holds weight j in its low half and weight j + 64 in its high half, so that a kernel
multiplies both halves without moving any weight. Weights are -8 to 7 times a signed scale, and the largest
weight of a group becomes -8. On the small models, this loses 2 % more than a zero point per group, which
would cost another product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.quantized.linear import SMALLEST, QuantizedLinear, in_parts

GROUP = 128
HALF = GROUP // 2
# the ends of the range to try, as fractions of a group's largest weight; clipping outliers helps the rest
REACHES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76)


class Int4Linear(QuantizedLinear):
    """A linear layer with half a byte per weight; inputs keep their dtype."""

    format = "int4"

    @staticmethod
    def empty(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        groups = -(-inputs // GROUP)  # the last is padded with zeros
        return (
            torch.empty(outputs, groups * HALF, dtype=torch.uint8),
            torch.empty(outputs, groups, dtype=torch.float32),
        )

    @staticmethod
    def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
        missing = -weight.shape[1] % GROUP
        groups = F.pad(weight.float(), (0, missing)).view(len(weight), -1, GROUP)
        scale = best_scale(groups)
        low, high = torch.split(rounded(groups, scale).add(8).to(torch.uint8), HALF, dim=-1)
        return (low | high << 4).flatten(1), scale[..., 0]

    @staticmethod
    def decode(weight: Tensor, scale: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
        halves = weight.view(len(weight), -1, HALF)
        whole = torch.cat((halves & 15, halves >> 4), dim=-1).float() - 8
        return (whole * scale[..., None]).flatten(1)[:, :inputs].to(dtype)

    @staticmethod
    def product(x: Tensor, weight: Tensor, scale: Tensor, *, native: bool) -> Tensor:
        return in_parts(plain_product, x, weight, scale)


class Int4PairLinear(Int4Linear):
    """A linear layer with a byte per weight: a second int4 weight [out, in] holds the error of the first.

    They are stored side by side, as one int4 weight [out, 2 * in] for inputs that are repeated.
    """

    @staticmethod
    def empty(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        return Int4Linear.empty(outputs, 2 * (inputs + -inputs % GROUP))

    @staticmethod
    def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
        first = Int4Linear.encode(weight)
        error = weight.float() - Int4Linear.decode(*first, weight.shape[1], torch.float32)
        narrow, scale = zip(first, Int4Linear.encode(error), strict=True)
        return torch.cat(narrow, dim=1), torch.cat(scale, dim=1)

    @staticmethod
    def decode(weight: Tensor, scale: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
        pairs = zip(weight.chunk(2, dim=1), scale.chunk(2, dim=1), strict=True)
        first, error = (Int4Linear.decode(*pair, inputs, torch.float32) for pair in pairs)
        return first.add_(error).to(dtype)

    @staticmethod
    def product(x: Tensor, weight: Tensor, scale: Tensor, *, native: bool) -> Tensor:
        return in_parts(pair_product, x, weight, scale)


def best_scale(groups: Tensor) -> Tensor:
    """Return the scale of each group [..., 1] that gives the least squared error."""
    place = groups.abs().argmax(-1, keepdim=True)
    widest = groups.gather(-1, place) / -8
    widest = torch.where(widest.abs() < SMALLEST, SMALLEST, widest)
    best, least = widest, torch.full_like(widest, torch.inf)
    for reach in REACHES:
        scale = widest * reach
        error = (rounded(groups, scale) * scale - groups).square().sum(-1, keepdim=True)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return best


def rounded(groups: Tensor, scale: Tensor) -> Tensor:
    """Return the integer, -8 to 7, that each weight becomes."""
    return (groups / scale).round_().clamp_(-8, 7)


def plain_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply x [n, in] by a packed weight that is unpacked first."""
    return F.linear(x, Int4Linear.decode(weight, scale, x.shape[-1], x.dtype))


def pair_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply x [n, in] by a pair of packed weights that is unpacked first."""
    return F.linear(x, Int4PairLinear.decode(weight, scale, x.shape[-1], x.dtype))
