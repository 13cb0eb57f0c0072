"""Classifier-free guidance as in LLaDA: a second row with everything given masked out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.errors import finite
from unmask.types import Cache, MaskedLM, ModelInfo


@dataclass(frozen=True, slots=True)
class Guided:
    """A model with logits u + (scale + 1)(c - u): c sees the given tokens, u does not."""

    model: MaskedLM
    scale: float | Tensor  # or one per row, [B, 1, 1]
    given: Tensor  # [B, N] bool

    @staticmethod
    def on(model: MaskedLM, canvas: Canvas, scale: float) -> Guided:
        """Guide a model towards everything that `canvas` holds now."""
        finite("guidance", scale)
        return Guided(model, scale, canvas.tokens != canvas.mask_id)

    @property
    def info(self) -> ModelInfo:
        return replace(self.model.info, separable=False)  # `given` names the rows

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        blind = tokens.masked_fill(self.given, self.info.mask_id)
        both = None if attend is None else torch.cat([attend, attend])
        seeing, unseeing = self.model(torch.cat([tokens, blind]), both, window, cache).float().chunk(2)
        return guide(seeing, unseeing, self.scale)


def guide(seeing: Tensor, unseeing: Tensor, scale: float | Tensor) -> Tensor:
    """Move logits away from the prediction without the given tokens."""
    # if one side rules a token out, there is no difference to follow
    ruled_out = (seeing == -torch.inf) | (unseeing == -torch.inf)
    difference = (seeing - unseeing).masked_fill_(ruled_out, 0)
    return difference.mul_(scale).add_(seeing)
