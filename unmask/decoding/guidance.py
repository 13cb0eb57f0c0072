"""Classifier-free guidance as in LLaDA: a second row has the given tokens masked out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.errors import finite
from unmask.types import Cache, MaskedLM, ModelInfo


@dataclass(frozen=True, slots=True)
class Guided:
    """A model with logits u + (scale + 1)(c - u): c sees the given tokens, u does not.

    Use it for classifier-free guidance with `decode`; it doubles the rows of a forward.

    Attributes:
        model: The model that is guided.
        scale: The strength, or one per row, [B, 1, 1]. 0 means no guidance.
        given: [B, N] bool, the tokens that u does not see.
    """

    model: MaskedLM
    scale: float | Tensor
    given: Tensor

    @staticmethod
    def on(model: MaskedLM, canvas: Canvas, scale: float) -> Guided:
        """Guide a model towards the tokens of `canvas`."""
        finite("guidance", scale)
        return Guided(model, scale, canvas.tokens != canvas.mask_id)

    @property
    def info(self) -> ModelInfo:
        return replace(self.model.info, separable=False)  # `given` belongs to fixed rows

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        without = tokens.masked_fill(self.given, self.info.mask_id)
        both = None if attend is None else torch.cat([attend, attend])
        logits = self.model(torch.cat([tokens, without]), both, window, cache).float()
        conditional, unconditional = logits.chunk(2)
        return guide(conditional, unconditional, self.scale)


def guide(conditional: Tensor, unconditional: Tensor, scale: float | Tensor) -> Tensor:
    """Move logits away from the prediction without the given tokens."""
    # do not move a token that either side bans: differences with -inf are infinite or NaN
    banned = (conditional == -torch.inf) | (unconditional == -torch.inf)
    difference = (conditional - unconditional).masked_fill_(banned, 0)
    return difference.mul_(scale).add_(conditional)
