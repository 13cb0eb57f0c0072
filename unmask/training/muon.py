"""Optimisers: Muon for the layers' matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unmask.errors import at_least, one_of, within

OptimizerName = Literal["muon", "adamw"]
NEWTON_SCHULZ = (
    3.4445,
    -4.7750,
    2.0315,
)  # Jordan's quintic: singular values end up in about [0.7, 1.2]
UPDATE_RMS = 0.2  # RMS of an update at learning rate 1, typical for AdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """Which optimiser trains a model, and how fast.

    Attributes:
        name: "muon" for Muon on the layers' matrices and AdamW on the rest, or "adamw" for AdamW on all.
        lr: Learning rate, >= 0.
        adam_lr: Learning rate of all parameters but the layers' matrices. None means lr.
        momentum: Muon's momentum, below 1.
        betas: AdamW's two betas, below 1.
        weight_decay: Weight decay of the layers' matrices, >= 0. A step decays by lr * weight_decay.
        max_grad_norm: Norm to which gradients are clipped, or 0 for no clipping.
    """

    name: OptimizerName = "muon"
    lr: float = 0.004
    adam_lr: float | None = None
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        one_of("name", self.name, get_args(OptimizerName))
        for name in ("lr", "adam_lr", "weight_decay", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, 0)
        for name, value in (
            ("momentum", self.momentum),
            ("betas", max(self.betas)),
            ("betas", min(self.betas)),
        ):
            within(name, value, 0, 0.99999)

    def build(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Build the optimisers of a model; the schedule multiplies each group's `base_lr`."""
        matrices, rest = split(model)
        adam_lr = self.lr if self.adam_lr is None else self.adam_lr
        # fused only on a GPU, because on the CPU the plain loop is exact and cheap
        fused = any(p.is_cuda for p in (*matrices, *rest))
        optimizers: list[torch.optim.Optimizer] = []
        if self.name == "muon":
            optimizers.append(
                Muon(matrices, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
            )
            groups: list[dict[str, Any]] = [{"params": rest, "lr": adam_lr, "weight_decay": 0.0}]
        else:
            groups = [
                {"params": matrices, "lr": self.lr, "weight_decay": self.weight_decay},
                {"params": rest, "lr": adam_lr, "weight_decay": 0.0},
            ]
        optimizers.append(torch.optim.AdamW(groups, betas=self.betas, eps=1e-8, fused=fused))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["base_lr"] = group["lr"]
        return optimizers


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split trainable parameters into the layers' matrices and the rest."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trained if p.ndim == 2 and name.startswith("layers.")]
    chosen = {id(p) for p in matrices}
    return matrices, [p for _, p in trained if id(p) not in chosen]


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Jordan et al., 2024), scaled to the size of AdamW's."""

    def __init__(
        self, params: Iterable[nn.Parameter], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        if any(p.ndim != 2 for group in self.param_groups for p in group["params"]):
            raise ValueError("Muon trains matrices only; give other parameters to AdamW")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient, equal shapes together."""
        assert closure is None, "Muon takes no closure"
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for params in by_shape.values():
                self._update(params, group)

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        momenta = [self._momentum(p) for p in params]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, momenta, group["momentum"])  # Nesterov
        update = orthogonalize(torch.stack(list(ahead))).to(params[0].dtype)
        size = UPDATE_RMS * max(params[0].shape) ** 0.5
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, list(update.unbind()), alpha=-group["lr"] * size)

    def _momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        momentum: Tensor = state["momentum"]
        return momentum


def orthogonalize(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """Approximate the nearest orthogonal matrices [n, a, b] by Newton-Schulz in bfloat16."""
    a, b, c = NEWTON_SCHULZ
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = (matrices if wide else matrices.mT).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    nearest: Tensor = x if wide else x.mT
    return nearest
