"""Entropy-bounded sampling: commit low-entropy positions while a bound on their joint error holds.

EB-Sampler (arXiv:2505.24857) ranks positions by entropy. It commits the longest prefix whose entropies,
without the largest, add up to at most the bound. At least one position is committed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.errors import at_least
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBound:
    """Commit the least uncertain positions while the entropies of those before them stay within a bound.

    Use it where the order does not follow the text; end_tokens="last" makes it more accurate and faster.

    The entropies are added up from the lowest.

    Attributes:
        bound: Largest sum of entropies in nats, gamma in EB-Sampler; >= 0. Larger commits more positions at
            once.
        fallback: What to commit where even the lowest entropy exceeds the bound: "surest" (the lowest
            entropy, as in EB-Sampler), "first" (the first mask), or a number n (the lowest entropy of the
            first n masks).
    """

    bound: float = 0.1
    fallback: policies.Fallback = "surest"

    def __post_init__(self) -> None:
        at_least("bound", self.bound, 0)
        policies.check_fallback(self.fallback)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        entropy = signals.entropy(obs.now)
        rank = policies.ranks(-entropy.masked_fill(~obs.active, torch.inf), torch.ones_like(obs.active))
        ranked = torch.zeros_like(entropy).scatter(-1, rank, entropy.masked_fill(~obs.active, 0))
        before = (ranked.cumsum(-1) - ranked).gather(-1, rank)  # without its own entropy, the largest so far
        commit = obs.active & (before <= self.bound)
        eligible, forced = commit, torch.zeros_like(obs.seen, dtype=torch.bool)
        if self.fallback != "surest":
            eligible = commit & (ranked[:, :1] <= self.bound)
            forced = ~eligible.any(-1)
            commit = eligible | forced[:, None] & policies.fallback(-entropy, obs.active, self.fallback)
        return Decision(commit, eligible, forced, signals={"entropy": entropy})
