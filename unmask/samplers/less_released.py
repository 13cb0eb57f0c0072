"""LESS as its authors released it: the Dream form on a full sequence, the LLaDA form inside a block.

It needs P *earlier* equal winners, computes the JSD with only its own top-K on each side, is stricter with
the end token, commits whole runs from the frontier and never skips a step. docs/fidelity.md lists all
differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.decoding.canvas import is_any
from unmask.errors import at_least, probability, whole
from unmask.samplers import policies, signals
from unmask.types import MAX_LOOKBACK, MAX_TOP_K, Decision, Needs, Observation

FIRST_DRIFT = 1.0  # stands for "no earlier step"; a threshold of 1 lets it pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LESSReleased:
    """The released rule, with its own thresholds for the end token."""

    min_confidence: float = 0.75
    max_jsd: float = 0.040
    persistence: int = 2  # earlier observations that must agree
    top_k: int = 8
    lookahead: int = 16
    patience: int = 2  # consecutive look-ahead commits before the frontier is forced
    end_floor: float = 0.55  # the end token needs max(end_floor, end_bar - end_slope * progress)
    end_bar: float = 0.9
    end_slope: float = 0.1
    end_jsd_factor: float = 0.5  # and this share of max_jsd

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        at_least("max_jsd", self.max_jsd, 0)
        whole("persistence", self.persistence, 1, MAX_LOOKBACK)
        whole("top_k", self.top_k, 1, MAX_TOP_K)
        for name in ("lookahead", "patience"):
            whole(name, getattr(self, name), 0)
        for name in ("end_floor", "end_bar", "end_slope", "end_jsd_factor"):
            probability(name, getattr(self, name))

    @property
    def needs(self) -> Needs:
        return Needs(top_k=max(2, self.top_k), lookback=self.persistence)

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        persists = signals.persistence(obs, self.persistence + 1)
        drift = signals.topk_jsd(obs, top_k=self.top_k, exact=False)
        drift = drift.masked_fill(drift.isinf(), FIRST_DRIFT)
        accepted = obs.active & persists & (confidence >= self.min_confidence) & (drift <= self.max_jsd)
        named = {"confidence": confidence, "persistence": persists, "jsd": drift}
        if obs.blockwise:
            forced = ~accepted.any(-1)
            fallback = policies.best(confidence, obs.active, obs.quota.clamp(min=1))
            return Decision(torch.where(forced[:, None], fallback, accepted), accepted, forced, signals=named)
        accepted = accepted & self.end_allowed(obs, confidence, drift)
        commit, forced, waits = self.full_sequence(obs, accepted, confidence)
        tokens = torch.where(forced[:, None], obs.now.top1, obs.drawn)
        return Decision(commit, accepted, forced, waits, tokens, named)

    def end_allowed(self, obs: Observation, confidence: Tensor, drift: Tensor) -> Tensor:
        """Return False where the winner is an end token below its stricter thresholds, [B, W]."""
        is_end = is_any(obs.now.top1, obs.eos_ids)
        threshold = (self.end_bar - self.end_slope * obs.progress).clamp(min=self.end_floor)
        return ~is_end | ((confidence >= threshold[:, None]) & (drift <= self.end_jsd_factor * self.max_jsd))

    def full_sequence(
        self, obs: Observation, accepted: Tensor, confidence: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return commit [B, W], forced [B] and the consecutive look-ahead commits [B] of the Dream form."""
        waits = torch.zeros_like(obs.seen) if obs.carry is None else obs.carry
        frontier = policies.frontier(obs.active)
        run = policies.frontier_run(accepted, obs.active)
        ahead = policies.best(confidence, accepted & policies.within(obs.active, self.lookahead), 1)
        runs = run.any(-1)
        looks = ~runs & ahead.any(-1) & (waits < self.patience)
        forced = ~runs & ~looks
        commit = torch.where(forced[:, None], frontier, torch.where(looks[:, None], ahead, run))
        return commit, forced, torch.where(looks, waits + 1, 0)
