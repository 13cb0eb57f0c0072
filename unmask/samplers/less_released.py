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

FIRST_DRIFT = 1.0  # JSD of a step without an earlier one; a max_jsd of 1 lets it pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LESSReleased:
    """Commit as the released code of LESS does, with separate thresholds for the end token.

    Use it to compare with the authors' numbers; docs/fidelity.md lists how it differs from `less`.

    Attributes:
        min_confidence: Least probability of the most likely token, 0 to 1.
        max_jsd: Largest Jensen-Shannon divergence from the last step's distribution, from 0 to ln 2 = 0.69;
            inf means no limit.
        persistence: Earlier steps that must have the same most likely token, 1 to 64; this step is not
            counted.
        top_k: Most likely tokens of each step that the JSD compares, 1 to 1024. Not the number of tokens to
            draw from.
        lookahead: On a full sequence, columns after the first mask in which a position may commit ahead of
            it.
        patience: On a full sequence, commits in a row ahead of the first mask before that mask is forced.
        end_floor: Least confidence of an end token on a full sequence, 0 to 1. An end token needs
            max(end_floor, end_bar - end_slope * share of the budget used).
        end_bar: Confidence that an end token needs at the start of a run, 0 to 1.
        end_slope: How far this confidence falls until the end of the run, 0 to 1.
        end_jsd_factor: Share of max_jsd that an end token may reach, 0 to 1.
    """

    min_confidence: float = 0.75
    max_jsd: float = 0.040
    persistence: int = 2
    top_k: int = 8
    lookahead: int = 16
    patience: int = 2
    end_floor: float = 0.55
    end_bar: float = 0.9
    end_slope: float = 0.1
    end_jsd_factor: float = 0.5

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
