"""LESS: commit when confidence, persistence and top-K JSD agree (arXiv:2606.16908).

`less` follows the paper's equations. `less-paper` is Algorithm 1 to the letter: one commit per step, up to
two skipped steps before the fallback. docs/fidelity.md says how they differ from `less-released`, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.errors import at_least, flag, one_of, probability, whole, within
from unmask.samplers import policies, signals
from unmask.types import MAX_LOOKBACK, MAX_TOP_K, Decision, Needs, Observation

Policy = Literal["frontier", "run", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LESS:
    """Commit a confident token once it has won several steps in a row and its distribution is stable.

    Use it for the paper's rule; `first-mask` needs fewer forwards and is more accurate on the small models
    (docs/choosing.md).

    Every ablation of the paper is this class with other values.

    Attributes:
        min_confidence: Least probability of the most likely token, 0 to 1; c in the paper. 0 means no test.
        max_jsd: Largest Jensen-Shannon divergence (JSD) from the last step's distribution, from 0 (unchanged)
            to ln 2 = 0.69; d in the paper. inf means no test.
        persistence: Steps in a row with the same most likely token, this one included, 1 to 64; P in the
            paper. 1 means no test.
        min_margin: Least top-1 minus top-2 probability, 0 to 1. 0 means no test.
        top_k: Most likely tokens of each step that the JSD compares, 1 to 1024; K in the paper. Not the
            number of tokens to draw from.
        lookahead: Columns after the first mask in which the policies "frontier" and "run" look for a
            position; W in the paper.
        patience: Steps in a row that may commit nothing before the fallback acts. 0 means none.
        policy: On a full sequence, which eligible positions commit: "frontier" (the first one), "run" (all
            from the first mask up to one that is not eligible, or else the first one) or "all".
        block_policy: The same inside a block.
        fallback: What to commit where nothing passes: "surest" (the most confident position), "first" (the
            first mask), or a number n (the most confident of the first n masks). None means as in the
            paper: the first mask, or in a block the schedule's quota of the most confident positions.
        exact: Compare true probabilities on both sets of top_k tokens. If False, a token outside a set counts
            as 0, as in the released code.
    """

    min_confidence: float = 0.75
    max_jsd: float = 0.040
    persistence: int = 2
    min_margin: float = 0.0
    top_k: int = 8
    lookahead: int = 16
    patience: int = 0
    policy: Policy = "run"
    block_policy: Policy = "all"
    fallback: policies.Fallback | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        at_least("max_jsd", self.max_jsd, 0)
        whole("persistence", self.persistence, 1, MAX_LOOKBACK)
        within("min_margin", self.min_margin, 0, 1)
        whole("top_k", self.top_k, 1, MAX_TOP_K)
        whole("lookahead", self.lookahead, 0)
        whole("patience", self.patience, 0)
        one_of("policy", self.policy, get_args(Policy))
        one_of("block_policy", self.block_policy, get_args(Policy))
        if self.fallback is not None:
            policies.check_fallback(self.fallback)
        flag("exact", self.exact)

    @property
    def needs(self) -> Needs:
        return Needs(
            top_k=max(2, self.top_k),
            lookback=max(self.persistence - 1, int(self.max_jsd < inf)),
            gather_logits=self.exact and self.max_jsd < inf,
        )

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        persists = signals.persistence(obs, self.persistence)
        eligible = obs.active & (confidence >= self.min_confidence) & persists
        seen = {"confidence": confidence, "persistence": persists}
        if self.max_jsd < inf:
            seen["jsd"] = signals.topk_jsd(obs, top_k=self.top_k, exact=self.exact)
            eligible = eligible & (seen["jsd"] <= self.max_jsd)
        if self.min_margin > 0:
            seen["margin"] = signals.margin(obs.now)
            eligible = eligible & (seen["margin"] >= self.min_margin)
        chosen = self.choose(eligible, obs)
        waits = torch.zeros_like(obs.seen) if obs.carry is None else obs.carry
        nothing = ~chosen.any(-1)
        forced = nothing & (waits >= self.patience)
        commit = torch.where(forced[:, None], self.instead(confidence, obs), chosen)
        waits = torch.where(nothing & ~forced, waits + 1, 0)
        return Decision(commit, eligible, forced, waits, signals=seen)

    def choose(self, eligible: Tensor, obs: Observation) -> Tensor:
        """Return the eligible positions that the policy commits, [B, W]."""
        policy = self.block_policy if obs.blockwise else self.policy
        if policy == "all":
            return eligible
        first = policies.frontier_first(eligible, obs.active, self.lookahead)
        return first | policies.frontier_run(eligible, obs.active) if policy == "run" else first

    def instead(self, confidence: Tensor, obs: Observation) -> Tensor:
        """Return the forced commits, [B, W]."""
        if self.fallback is not None:
            return policies.fallback(confidence, obs.active, self.fallback)
        if obs.blockwise:
            return policies.best(confidence, obs.active, obs.quota.clamp(min=1))
        return policies.frontier(obs.active)


ABLATIONS = {
    "confidence-only": LESS(max_jsd=inf, persistence=1),
    "jsd-only": LESS(min_confidence=0, persistence=1),
    "persistence-only": LESS(min_confidence=0, max_jsd=inf),
    "margin-only": LESS(min_confidence=0, max_jsd=inf, persistence=1, min_margin=0.20),
    "no-confidence": LESS(min_confidence=0),
    "no-jsd": LESS(max_jsd=inf),
    "no-persistence": LESS(persistence=1),
    "policy-frontier": LESS(policy="frontier", block_policy="frontier"),
    "policy-run": LESS(policy="run", block_policy="run"),
    "policy-all": LESS(policy="all", block_policy="all"),
}
