"""Threshold: commit every position above a confidence, and at least the best one (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import probability
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Commit every position with at least this confidence, or else the most confident one."""

    min_confidence: float = 0.9

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        eligible = obs.active & (confidence >= self.min_confidence)
        commit = eligible | policies.best(confidence, obs.active, 1)
        return Decision(commit, eligible, ~eligible.any(-1), signals={"confidence": confidence})
