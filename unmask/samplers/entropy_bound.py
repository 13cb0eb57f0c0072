"""Entropy-bounded sampling: commit low-entropy positions while the error they can make together stays small.

EB-Sampler (arXiv:2505.24857): in order of entropy, the longest prefix whose entropies without the largest add
up to at most the bound, and at least one position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask import signals
from unmask.checks import at_least
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBound:
    """Commit the least uncertain positions whose entropies, without the largest, stay within the bound."""

    bound: float = 0.1  # gamma, in nats

    def __post_init__(self) -> None:
        at_least("bound", self.bound, 0)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        entropy = signals.entropy(obs.now)
        ranked, order = entropy.masked_fill(~obs.active, torch.inf).sort(dim=-1, stable=True)
        kept = ranked.cumsum(-1) - ranked <= self.bound  # the largest of the prefix does not count
        commit = torch.zeros_like(kept).scatter(-1, order, kept) & obs.active
        return Decision(
            commit, commit, torch.zeros_like(obs.seen, dtype=torch.bool), signals={"entropy": entropy}
        )
