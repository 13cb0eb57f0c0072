"""First mask: commit what is all but certain, or else the first mask, and no end token before its turn.

Ordering by confidence spends a step on a token that was nearly settled anyway. The first mask settles what
follows it. End tokens are confident long before the text is written, so they wait for the masks to their
left.

Every step commits at least one position, and a position is revoked at most once per block. A block of W masks
therefore takes at most 2 W steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.decoding.canvas import is_any
from unmask.errors import at_least, one_of, probability, whole
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation

Along = Literal["confidence", "jsd"]
TOP_K = 8  # candidates that the JSD compares


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMask:
    """Commit every confident position, or else the first mask; an end token waits for the masks before it.

    Start with it: it has one main setting, keeps no history, and works in blocks and on full sequences. Where
    the order does not follow the text, as in infilling, use a larger `window`, or the sampler `threshold`.

    Attributes:
        min_confidence: Least probability of the most likely token of a position that commits wherever it is,
            0 to 1.
        window: The fallback commits the most confident of this many first masks, >= 1.
        along: Test that lets the first mask commit together with confident positions: "confidence" or "jsd".
            None means that it never does.
        along_confidence: Least confidence of a first mask that commits with others if along="confidence", 0
            to 1. 0 means always.
        along_jsd: Largest Jensen-Shannon divergence from the last step of a first mask that commits with
            others if along="jsd", >= 0.
        revoke_below: Mask a token of the block again, once, if its probability falls below this, 0 to 1. 0
            means never.
    """

    min_confidence: float = 0.98
    window: int = 1
    along: Along | None = None
    along_confidence: float = 0.7
    along_jsd: float = 0.001
    revoke_below: float = 0.0

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        whole("window", self.window, 1)
        if self.along is not None:
            one_of("along", self.along, get_args(Along))
        probability("along_confidence", self.along_confidence)
        at_least("along_jsd", self.along_jsd, 0)
        probability("revoke_below", self.revoke_below)

    @property
    def needs(self) -> Needs:
        jsd, revoke = self.along == "jsd", self.revoke_below > 0
        return Needs(
            top_k=TOP_K if jsd else 2,
            lookback=int(jsd),
            gather_logits=jsd,
            logits=jsd and revoke,  # a revocation reads full logits, which gather_logits alone may not keep
            revoke=revoke,
            carry=int(revoke),
            ends_last=True,
        )

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        is_end = is_any(obs.drawn, obs.eos_ids)
        sure = obs.active & (confidence >= self.min_confidence)
        eligible = policies.ends_last(sure, obs.active, is_end)
        seen = {"confidence": confidence, "end_waits": sure & ~eligible}
        forced = ~eligible.any(-1)
        fallback = first = policies.frontier(obs.active)
        if self.window > 1:
            near = obs.active & (obs.active.cumsum(-1) <= self.window)
            fallback = policies.best(confidence, near & (first | ~is_end), 1)
        if self.along == "confidence":
            eligible = eligible | (first & (confidence >= self.along_confidence) & ~forced[:, None])
        if self.along == "jsd":
            seen["jsd"] = signals.topk_jsd(obs, top_k=TOP_K, exact=True)
            eligible = eligible | (first & (seen["jsd"] <= self.along_jsd) & ~forced[:, None])
        commit = torch.where(forced[:, None], fallback, eligible)
        if self.revoke_below == 0:
            return Decision(commit, eligible, forced, signals=seen)
        seen["probability"], revoke, revoked = self.revocations(obs)
        return Decision(commit, eligible, forced, revoked, signals=seen, revoke=revoke)

    def revocations(self, obs: Observation) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tokens' probabilities, which to revoke, and which were revoked so far, [B, W] each."""
        assert obs.tokens is not None, "Needs(revoke=True) promises tokens"
        assert obs.written is not None, "Needs(revoke=True) promises written"
        chance = signals.probability(obs.now, torch.where(obs.written, obs.tokens, obs.drawn))
        before = torch.zeros_like(obs.written) if obs.carry is None else obs.carry
        revoke = obs.written & ~before & (chance < self.revoke_below)
        return chance, revoke, before | revoke
