"""The training objective: cross-entropy of masked tokens, weighted by 1 / mask rate (LESS Eq. 9; LLaDA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """Extra weight of some answers and tokens in the loss; by default there is none.

    Attributes:
        short_answer: Answers with fewer tokens than this, end token included, are short. With 0, none is.
        short_answer_weight: Weight of a short answer, >= 0.
        tokens: Text of a single token -> its weight, >= 0.
    """

    short_answer: int = 0
    short_answer_weight: float = 1.0
    tokens: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least("short_answer", self.short_answer, 0)
        at_least("short_answer_weight", self.short_answer_weight, 0)
        for text, weight in self.tokens.items():
            at_least(f"tokens[{text!r}]", weight, 0)

    def of(self, targets: Tensor, *, answers: Tensor, by_token: Tensor | None) -> Tensor:
        """Return the weight of each target [B, W]; `answers` [B] are lengths, `by_token` is [V]."""
        row = torch.where(answers < self.short_answer, self.short_answer_weight, 1.0)[:, None]
        return row.expand(targets.shape) if by_token is None else row * by_token[targets]


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log p of each target in float32: [B, W, V], [B, W] -> [B, W]."""
    flat = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def diffusion_loss(logits: Tensor, targets: Tensor, scale: Tensor) -> Tensor:
    """Sum -log p over the window, each target times its scale [B, W], which is 0 where nothing is masked."""
    return (token_losses(logits, targets) * scale).sum()


def loss_scale(masked: Tensor, *, rate: Tensor, region: Tensor, weight: Tensor) -> Tensor:
    """Return the loss scale [B, W]: weight / rate on masked columns, divided by the weight of the region.

    A token is masked with probability `rate` and then counts 1 / rate, so all tokens count the same in
    expectation. Dividing by the region, not by the number of masks, preserves this.
    """
    return masked * weight / rate[:, None] / (region * weight).sum()
