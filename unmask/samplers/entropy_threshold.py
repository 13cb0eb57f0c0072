"""Entropy threshold: commit every position of low entropy, and at least the lowest (d3LLM)."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.errors import at_least
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyThreshold:
    """Commit every position whose entropy is within a threshold, or else the one with the lowest entropy.

    Use it to compare with d3LLM. Its threshold looks at the whole distribution, not only at the best token.

    Attributes:
        max_entropy: Largest entropy in nats, >= 0. Larger is faster and less accurate.
    """

    max_entropy: float = 0.5

    def __post_init__(self) -> None:
        at_least("max_entropy", self.max_entropy, 0)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        entropy = signals.entropy(obs.now)
        eligible = obs.active & (entropy <= self.max_entropy)
        commit = eligible | policies.best(-entropy, obs.active, 1)
        return Decision(commit, eligible, ~eligible.any(-1), signals={"entropy": entropy})
