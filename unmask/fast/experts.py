"""Mixtures of experts of a compiled model: sort the pairs of a token and an expert, then run two products.

Plain torch quantizes the inputs of quantized experts and adds up the weighted results. The compiler fuses
both with the operations around them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmask.fast import kernels
from unmask.fast.kernels.tiles import ExpertTiles, Tile, count_slots, expert_tiles
from unmask.fast.quantized import QUANTIZE_ROWS
from unmask.models.experts import Experts, Route
from unmask.models.quantized.experts import QuantizedExperts
from unmask.models.quantized.linear import QuantizedLinear

Stack = tuple[Tensor, Tensor | None]  # matrices [E, out, in], and scales [E, out, ...] if quantized
Slots = tuple[Tensor, Tensor]  # numbers [S, rows] of (token, expert) pairs, and each slot's expert


def use_expert_kernels(model: nn.Module, inputs: torch.dtype) -> None:
    """Run every mixture of experts on our kernels if they support inputs of this dtype."""
    for module in model.modules():
        if isinstance(module, Experts | QuantizedExperts):
            weight, _ = stacks(module)[0]
            if kernels.multiplies_narrow(weight, inputs):
                module.run_fn = run_experts


def run_experts(experts: Experts | QuantizedExperts, x: Tensor, route: Route) -> Tensor:
    """Return `experts.run(x, route)`, computed by our kernels if they have tiles for its sizes."""
    weights, chosen = route
    gate_up, down = stacks(experts)
    tiles = tiles_for(gate_up[0], down[0], chosen.numel())
    if tiles is None:
        return experts.run(x, route)
    slots = sort_pairs(chosen, len(gate_up[0]), tiles.gate_up.rows)
    hidden = _multiply(x, gate_up, slots, chosen.numel(), gated=True)
    results = _multiply(hidden, down, slots, chosen.numel(), gated=False)
    return (results.view(*chosen.shape, -1).float() * weights[..., None]).sum(1)


def tiles_for(gate_up: Tensor, down: Tensor, pairs: int) -> ExpertTiles | None:
    """Return the tiles for `pairs` pairs of a token and an expert, or None to leave them to the library."""
    tiles = expert_tiles(gate_up.dtype, pairs, len(gate_up))
    if tiles is None or gate_up.dtype != down.dtype:
        return None
    first, second = tiles
    hidden, size = gate_up.shape[1] // 2, down.shape[1]
    whole = not (hidden % first.outputs or size % first.inner or size % second.outputs)
    return tiles if whole and hidden % second.inner == 0 else None


def stacks(experts: Experts | QuantizedExperts) -> tuple[Stack, Stack]:
    """Return the stacked weights of the gate and up product, and of the down product."""
    if isinstance(experts, Experts):
        return (experts.gate_up, None), (experts.down, None)

    def stack(layer: QuantizedLinear) -> Stack:
        return experts.stacked(layer.weight), layer.scale.view(experts.experts, -1, *layer.scale.shape[1:])

    return stack(experts.gate_up), stack(experts.down)


def _multiply(x: Tensor, stack: Stack, slots: Slots, count: int, *, gated: bool) -> Tensor:
    weight, scale = stack
    if weight.dtype == torch.uint8:  # a pair of int4 weights multiplies its inputs twice
        x = x.repeat(1, 2 * weight.shape[2] // x.shape[1])
    quantize_rows = QUANTIZE_ROWS.get(weight.dtype)
    narrow, row_scale = (x, None) if quantize_rows is None else quantize_rows(x)
    product: Tensor = expert_product(narrow, row_scale, weight, scale, *slots, count, gated, x.dtype)
    return product


def _sort_pairs(chosen: Tensor, experts: int, rows: int) -> Slots:
    from unmask.fast.kernels.experts import sort_pairs

    return sort_pairs(chosen, experts, rows)


def _expert_product(
    x: Tensor,
    row_scale: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    pairs: Tensor,
    of_slot: Tensor,
    count: int,
    gated: bool,
    dtype: torch.dtype,
) -> Tensor:
    from unmask.fast.kernels.experts import expert_product

    tiles = expert_tiles(weight.dtype, count, len(weight))
    assert tiles is not None
    tile: Tile = tiles.gate_up if gated else tiles.down
    slots = pairs, of_slot
    return expert_product(x, row_scale, weight, scale, slots, count, tile, gated=gated, dtype=dtype)


# custom ops, so that torch.compile does not trace into them
sort_pairs = torch.library.custom_op(
    "unmask::sort_pairs",
    _sort_pairs,
    mutates_args=(),
    schema="(Tensor chosen, int experts, int rows) -> (Tensor, Tensor)",
)
expert_product = torch.library.custom_op(
    "unmask::expert_product",
    _expert_product,
    mutates_args=(),
    schema="(Tensor x, Tensor? row_scale, Tensor weight, Tensor? scale, Tensor pairs, Tensor of_slot,"
    " int count, bool gated, ScalarType dtype) -> Tensor",
)


@sort_pairs.register_fake
def _(chosen: Tensor, experts: int, rows: int) -> Slots:
    slots = count_slots(chosen.numel(), experts, rows)
    return chosen.new_empty(slots, rows, dtype=torch.int32), chosen.new_empty(slots, dtype=torch.int32)


@expert_product.register_fake
def _(
    x: Tensor,
    row_scale: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    pairs: Tensor,
    of_slot: Tensor,
    count: int,
    gated: bool,
    dtype: torch.dtype,
) -> Tensor:
    return x.new_empty(count, weight.shape[1] // 2 if gated else weight.shape[1], dtype=dtype)
