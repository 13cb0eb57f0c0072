"""Threshold: commit every position above a confidence, and at least one (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import probability
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Commit every position whose confidence reaches a threshold, or else one.

    Use it for a fast rule without a history and with one number to tune, also where the order does not follow
    the text.

    Attributes:
        min_confidence: Least probability of the most likely token, 0 to 1. Lower is faster and less accurate.
        fallback: What to commit where nothing passes: "surest" (the most confident position), "first" (the
            first mask), or a number n (the most confident of the first n masks).
    """

    min_confidence: float = 0.9
    fallback: policies.Fallback = "surest"

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        policies.check_fallback(self.fallback)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        eligible = obs.active & (confidence >= self.min_confidence)
        forced = ~eligible.any(-1)
        commit = eligible | forced[:, None] & policies.fallback(confidence, obs.active, self.fallback)
        return Decision(commit, eligible, forced, signals={"confidence": confidence})
