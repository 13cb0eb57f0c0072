"""Mixtures of quantized experts. A stack [E, out, in] is stored as a layer with E * out output channels."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from unmask.models.experts import Experts, Route, RunFn, can_group, grouped_product, mix, run_looped
from unmask.models.quantized.fp8 import FP8Linear, quantize_rows
from unmask.models.quantized.linear import QuantizedLinear

HAS_SCALED = hasattr(torch, "_scaled_grouped_mm")


class QuantizedExperts(nn.Module):
    """SwiGLU layers with stacked weights, quantized per expert and output channel."""

    gate_up: QuantizedLinear
    down: QuantizedLinear

    def __init__(self, experts: Experts, layer: type[QuantizedLinear]) -> None:
        super().__init__()
        self.experts = len(experts.gate_up)
        self.grouped: bool | None = None  # see Experts
        self.run_fn: RunFn = QuantizedExperts.run
        for name in ("gate_up", "down"):
            stack = getattr(experts, name)
            setattr(self, name, layer(stack.shape[2], stack.shape[0] * stack.shape[1]))

    def forward(self, x: Tensor, route: Route) -> Tensor:
        return self.run_fn(self, x, route)

    def run(self, x: Tensor, route: Route) -> Tensor:
        """Run the chosen experts; see `mix`."""
        gate_up, down = (partial(self.multiply, layer) for layer in (self.gate_up, self.down))
        return mix(x, route, self.experts, gate_up, down)

    def multiply(self, layer: QuantizedLinear, x: Tensor, ends: Tensor) -> Tensor:
        """Multiply rows [P, in] by the matrices of their experts; expert e's rows end at ends[e]."""
        stack = self.stacked(layer.weight)
        if not (can_group(x, stack) if self.grouped is None else self.grouped):
            return run_looped(partial(self._loop, layer), x, ends)
        if HAS_SCALED and isinstance(layer, FP8Linear):
            return self._scaled(layer, x, ends)
        wide = layer.decode(layer.weight, layer.scale, layer.inputs, x.dtype)
        return grouped_product(self.stacked(wide), x, ends)

    def stacked(self, weight: Tensor) -> Tensor:
        """View a weight [E * out, in] as [E, out, in]."""
        return weight.view(self.experts, -1, weight.shape[1])

    def _scaled(self, layer: QuantizedLinear, x: Tensor, ends: Tensor) -> Tensor:
        """Multiply in fp8, without widening the weights."""
        narrow, row_scale = quantize_rows(x)
        stack, scale = self.stacked(layer.weight), layer.scale.view(self.experts, -1)
        product: Tensor = torch._scaled_grouped_mm(
            narrow, stack.mT, row_scale[:, 0], scale, offs=ends, out_dtype=torch.bfloat16
        )
        return product

    def _loop(self, layer: QuantizedLinear, number: int, x: Tensor) -> Tensor:
        """Multiply rows by the matrix of one expert."""
        size = layer.outputs // self.experts
        rows = slice(number * size, (number + 1) * size)
        native = layer.has_products(x.device)
        return layer.product(x, layer.weight[rows], layer.scale[rows], native=native)
