"""Editing: fill masks by confidence, and rewrite tokens of the block where the model changed its mind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from unmask.errors import probability, whole
from unmask.samplers import signals
from unmask.samplers.quota_threshold import QuotaThreshold
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """Commit every position above a confidence, and correct written tokens of the same block (LLaDA2.1).

    Use it for models that were trained to correct themselves.

    A block without masks continues until a step changes nothing.

    Attributes:
        min_confidence: A mask is filled above this confidence, not at it.
        edit_confidence: A written token is replaced by another one above this confidence. 0 means always.
        at_least: Fewest masks to fill in every step, >= 1.
        max_post_steps: Steps that a block without masks may still take.
    """

    min_confidence: float = 0.95
    edit_confidence: float = 0.9
    at_least: int = 1
    max_post_steps: int = 16

    def __post_init__(self) -> None:
        probability("edit_confidence", self.edit_confidence)
        whole("max_post_steps", self.max_post_steps, 0)
        self.filling  # noqa: B018 checks the other fields

    @property
    def filling(self) -> QuotaThreshold:
        """The rule that fills masks."""
        return QuotaThreshold(min_confidence=self.min_confidence, at_least=self.at_least)

    @property
    def needs(self) -> Needs:
        return Needs(revoke=True, carry=1, whole_blocks=True, extra_steps=self.max_post_steps)

    def decide(self, obs: Observation) -> Decision:
        assert obs.written is not None, "Needs(revoke=True) promises the tokens"
        filled, confidence = self.filling.decide(obs), signals.confidence(obs.now)
        edit = obs.written & (obs.now.top1 != obs.tokens) & (confidence > self.edit_confidence)
        tokens = torch.where(edit, obs.now.top1, obs.drawn)
        had_masks = obs.active.any(-1)
        before = torch.zeros_like(obs.seen) if obs.carry is None else obs.carry
        post_steps = torch.where(had_masks, 0, before + 1)
        more = (had_masks | edit.any(-1)) & (post_steps < self.max_post_steps)
        return replace(filled, rewrite=edit, tokens=tokens, open=more, carry=post_steps)
