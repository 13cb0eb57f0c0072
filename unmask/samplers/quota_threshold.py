"""Quota threshold: every position above a confidence, and at least the schedule's quota (SDAR, LLaDA2.0)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.errors import probability, whole
from unmask.samplers import policies
from unmask.samplers.base import Base
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaThreshold:
    """Commit every position above a confidence if enough pass, else the most confident ones.

    Use it for models that attend block by block: it is the rule of SDAR, LLaDA2.0 and Fast-dLLM v2.

    The confidence of a drawn token is its probability after temperature, top-p and top-k.

    Attributes:
        min_confidence: A position passes above this confidence, not at it.
        at_least: Fewest positions to commit in every step. None means the schedule's quota, and at least one.
        temperature: Divides the logits before the confidence is computed. 0 leaves them unchanged.
        top_p: Keeps the smallest set of tokens whose total probability reaches this.
        top_k: Keeps this many of the most likely tokens. 0 keeps all.
    """

    min_confidence: float = 0.95
    at_least: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        if self.at_least is not None:
            whole("at_least", self.at_least, 1)
        self.scores  # noqa: B018 checks temperature, top_p and top_k

    @property
    def scores(self) -> Base:
        """The sampler `base`, which computes the confidence."""
        return Base(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        confidence = self.scores.score(obs)
        passing = obs.active & (confidence > self.min_confidence)
        least = obs.quota.clamp(min=1) if self.at_least is None else torch.full_like(obs.quota, self.at_least)
        enough = passing.sum(-1) >= least
        commit = torch.where(enough[:, None], passing, policies.best(confidence, obs.active, least))
        return Decision(commit, passing, ~enough, signals={"confidence": confidence})
