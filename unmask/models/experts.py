"""Mixtures of experts: three routers, stacked weights, and one function that runs the chosen experts.

Experts are stacked, [E, 2h, d] and [E, d, h], so that a GPU runs all of them as two grouped products.
Elsewhere a loop over the experts computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.models.layers import SwiGLU

RouterName = Literal["softmax", "renormalised", "grouped"]
Route = tuple[Tensor, Tensor]  # weights [T, k] float32 and numbers [T, k] of each token's experts
RunFn = Callable[[Any, Tensor, Route], Tensor]  # see Experts.run; the first argument is the experts
ProductFn = Callable[[Tensor, Tensor], Tensor]  # see `grouped_product`, but with its weight bound
PARTS = {"gate_up": ("gate", "up"), "down": ("down",)}  # the matrices that a stack holds for each expert
GROUPED = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
UNIT = 8  # rows of grouped products in bfloat16 must be multiples of 16 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The sizes of a mixture of experts and the settings of its router."""

    router: RouterName
    experts: int
    chosen: int  # experts per token
    size: int  # hidden width of an expert
    shared_size: int = 0  # hidden width of the expert that every token uses; 0 means none
    dense: Collection[int] = ()  # layers with a plain MLP
    bias: bool = False  # whether a bias is added to the scores when experts are chosen
    groups: int = 1  # the "grouped" router chooses experts inside the best groups only
    kept_groups: int = 1
    scale: float = 1.0  # factor of the weights of the "grouped" router

    def width(self, *, active: bool) -> int:
        """Return the total hidden width of a layer's experts, or, if `active`, of those that a token uses."""
        return (self.chosen if active else self.experts) * self.size + self.shared_size


def softmax_router(x: Tensor, weight: Tensor, bias: Tensor | None, shape: ExpertShape) -> Route:
    """Route as LLaDA-MoE: a weight is the score plus its bias, and weights need not add up to one."""
    score = F.linear(x, weight).float().softmax(-1)
    best = (score if bias is None else score + bias).topk(shape.chosen)
    return best.values, best.indices


def renormalised_router(x: Tensor, weight: Tensor, bias: Tensor | None, shape: ExpertShape) -> Route:
    """Route as Qwen3-MoE: the weights of the chosen experts add up to one."""
    weights, chosen = softmax_router(x, weight, bias, shape)
    return weights / weights.sum(-1, keepdim=True), chosen


def grouped_router(x: Tensor, weight: Tensor, bias: Tensor | None, shape: ExpertShape) -> Route:
    """Route as LLaDA2: choose by score plus bias inside the best groups, but weight by the score."""
    score = F.linear(x.float(), weight.float()).sigmoid()
    grouped = (score if bias is None else score + bias).view(len(x), shape.groups, -1)
    of_group = grouped.topk(2).values.sum(-1)
    kept = torch.zeros_like(of_group, dtype=torch.bool)
    kept = kept.scatter(1, of_group.topk(shape.kept_groups).indices, True)
    chosen = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(1).topk(shape.chosen).indices
    weights = score.gather(1, chosen)
    if shape.chosen > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * shape.scale, chosen


ROUTERS: dict[RouterName, Callable[[Tensor, Tensor, Tensor | None, ExpertShape], Route]] = {
    "softmax": softmax_router,
    "renormalised": renormalised_router,
    "grouped": grouped_router,
}


class Router(nn.Module):
    """Chooses the experts of each token. It is not an nn.Linear, so that it is never quantized."""

    def __init__(self, size: int, shape: ExpertShape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(_fresh(shape.experts, size))
        self.expert_bias = nn.Parameter(torch.zeros(shape.experts)) if shape.bias else None

    def forward(self, x: Tensor) -> Route:
        return ROUTERS[self.shape.router](x, self.weight, self.expert_bias, self.shape)


class Experts(nn.Module):
    """SwiGLU layers with stacked weights."""

    def __init__(self, size: int, shape: ExpertShape) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(_fresh(shape.experts, 2 * shape.size, size))
        self.down = nn.Parameter(_fresh(shape.experts, size, shape.size))
        self.grouped: bool | None = None  # set by unmask.compile; None means ask the device
        self.run_fn: RunFn = Experts.run  # unmask.compile may set a faster one

    def forward(self, x: Tensor, route: Route) -> Tensor:
        return self.run_fn(self, x, route)

    def run(self, x: Tensor, route: Route) -> Tensor:
        """Run the chosen experts on the tokens x [T, d] and add up their weighted results: see `mix`."""
        grouped = can_group(x, self.gate_up) if self.grouped is None else self.grouped
        product = grouped_product if grouped else looped_product
        gate_up, down = (partial(product, stack) for stack in (self.gate_up, self.down))
        return mix(x, route, len(self.gate_up), gate_up, down)


class Mixture(nn.Module):
    """The experts of a layer, their router, and the expert that every token uses."""

    def __init__(self, size: int, shape: ExpertShape) -> None:
        super().__init__()
        self.router = Router(size, shape)
        self.experts = Experts(size, shape)
        self.shared = SwiGLU(size, shape.shared_size) if shape.shared_size else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        mixed: Tensor = self.experts(tokens, self.router(tokens)).view(x.shape)
        if self.shared is None:
            return mixed
        common: Tensor = self.shared(x)
        return mixed + (common.sum(0) if common.dim() > x.dim() else common)  # it may come in unsummed parts


def mix(x: Tensor, route: Route, experts: int, gate_up: ProductFn, down: ProductFn) -> Tensor:
    """Run the chosen experts on the tokens x [T, d] and add up their weighted results, [T, d] float32."""
    weights, chosen = route
    count = chosen.shape[1]
    by_expert, order = chosen.flatten().int().sort(stable=True)  # pairs of a token and an expert
    numbers = torch.arange(experts, dtype=torch.int32, device=x.device)
    ends = torch.searchsorted(by_expert, numbers, right=True, out_int32=True)
    gate, up = gate_up(x[order // count], ends).chunk(2, dim=-1)
    sorted_results = down(F.silu(gate) * up, ends)
    place = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
    # not an index_add, because the order of a sum over a fixed axis never changes
    return (sorted_results[place.view(chosen.shape)].float() * weights[..., None]).sum(1)


def can_group(x: Tensor, weight: Tensor) -> bool:
    """Return whether this device has a grouped product for these tensors."""
    if GROUPED is None or not x.is_cuda or x.dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(x.device) >= (9, 0) and not any(
        size % UNIT for size in (weight.shape[1] // 2, weight.shape[2])
    )


def grouped_product(weight: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows [P, in] by the matrices [E, out, in] of their experts; expert e's rows end at ends[e]."""
    assert GROUPED is not None
    product: Tensor = GROUPED(x, weight.mT, offs=ends)
    return product


def looped_product(weight: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Compute `grouped_product` expert by expert. This waits for the device."""
    return run_looped(lambda expert, rows: F.linear(rows, weight[expert]), x, ends)


def run_looped(product: Callable[[int, Tensor], Tensor], x: Tensor, ends: Tensor) -> Tensor:
    """Multiply the rows of each expert separately."""
    # not as a decorator: that would import the compiler with the package
    looped: Tensor = torch.compiler.disable(_loop)(product, x, ends)  # type: ignore[no-untyped-call, unused-ignore]
    return looped


def _loop(product: Callable[[int, Tensor], Tensor], x: Tensor, ends: Tensor) -> Tensor:
    parts = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([product(expert, part) for expert, part in enumerate(parts) if len(part)])


def _fresh(*sizes: int) -> Tensor:
    weight = torch.empty(*sizes)
    return weight if weight.is_meta else weight.normal_(0.0, sizes[-1] ** -0.5)
