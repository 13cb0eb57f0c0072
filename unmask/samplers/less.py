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
    """Commit a confident token once it has won several steps in a row and its distribution stands still.

    Every ablation of the paper is this class with other values.
    """

    min_confidence: float = 0.75  # c
    max_jsd: float = 0.040  # d; inf: off
    persistence: int = 2  # P, this observation included; 1: off
    min_margin: float = 0.0  # top-1 minus top-2 probability; 0: off
    top_k: int = 8  # K
    lookahead: int = 16  # W
    patience: int = 0  # skipped steps before the fallback; 2 in less-paper
    policy: Policy = "run"  # full sequence: one frontier position, the run from the frontier, all eligible
    block_policy: Policy = "all"  # the same inside a block
    # if nothing passes; None: as the paper, the frontier or the quota of a block
    fallback: policies.Fallback | None = None
    exact: bool = True  # true masses on the union of both top-K sets; False: zero-filled, as released

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
