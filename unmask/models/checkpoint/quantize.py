"""Weight-only int8: linear layers with one byte per weight and one scale per output channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 16384  # output channels dequantized at a time; a vocabulary-sized layer needs no full copy


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize [out, in] to int8 [out, in] and float32 scales [out]; symmetric, round to nearest."""
    rounded, scales = [], []
    for part in torch.split(weight, ROWS):
        scale = part.abs().amax(1).float().clamp(min=torch.finfo(torch.float32).tiny) / 127
        rounded.append((part / scale[:, None]).round_().to(torch.int8))
        scales.append(scale)
    return torch.cat(rounded), torch.cat(scales)


class Int8Linear(nn.Module):
    """A linear layer with int8 weights; inputs and outputs keep their dtype."""

    weight: Tensor  # [out, in] int8
    scale: Tensor  # [out] float32

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(outputs, inputs, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(torch.split(self.weight, ROWS), torch.split(self.scale, ROWS), strict=True)
        # scale the product in float32: a scale rounded to bfloat16 would shift a whole channel
        outputs = [(F.linear(x, weight.to(x.dtype)) * scale.float()).to(x.dtype) for weight, scale in parts]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return output if self.bias is None else output + self.bias


def quantize_linears(model: nn.Module) -> set[str]:
    """Replace every nn.Linear of a model on `meta` with an empty Int8Linear; return their weight names."""
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name, linear in linears.items():
        swapped = Int8Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
        model.set_submodule(name, swapped.to("meta"))
    return {f"{name}.weight" for name in linears}
