"""KLASS: commit when confidence is high and the KL divergence between steps stays low (arXiv:2511.05664).

It uses the LLaDA form inside a block and the Dream form on a full sequence. They differ in strictness and
fallback. The LLaDA form waits in every block, although its divergences reach back into the block before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from unmask.errors import at_least, one_of, probability, whole
from unmask.samplers import policies, signals
from unmask.samplers.base import random
from unmask.types import MAX_LOOKBACK, Decision, Needs, Observation

Strategy = Literal["all", "max_conf", "min_kl", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KLASS:
    """Commit confident positions whose prediction has hardly changed for `history` steps.

    Use it to compare with KLASS. A stricter confidence alone gains more on the small models
    (docs/choosing.md). It looks at the whole generation, so the cache `dual` does not fit it.

    Attributes:
        min_confidence: Least probability of the most likely token, 0 to 1; inside blocks it must be exceeded.
        max_kl: The KL divergence from the last step's distribution must stay below this, in nats; >= 0.
        history: Divergences in a row that must be low, 1 to 64.
        unmask_strategy: Which of the positions that pass are committed: "all", or one of them by "max_conf",
            "min_kl" or "random".
        fallback: What to commit where nothing passes: "surest" (the most confident position), "first" (the
            first mask), or a number n (the most confident of the first n masks). None means the
            most confident positions, as in the released code: the schedule's quota in a block, else one.
    """

    min_confidence: float = 0.9
    max_kl: float = 0.01
    history: int = 2
    unmask_strategy: Strategy = "all"
    fallback: policies.Fallback | None = None

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        at_least("max_kl", self.max_kl, 0)
        whole("history", self.history, 1, MAX_LOOKBACK)
        one_of("unmask_strategy", self.unmask_strategy, get_args(Strategy))
        if self.fallback is not None:
            policies.check_fallback(self.fallback)

    @property
    def needs(self) -> Needs:
        return Needs(
            lookback=1,
            logits=True,
            span=True,
            noise=self.unmask_strategy == "random",
            carry=self.history - 1,
        )

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        kl = signals.kl_step(obs)
        recent = self.recent(kl, obs.carry)
        stable = obs.active & (recent < self.max_kl).all(-1)
        if obs.blockwise:
            waited = obs.step >= self.history - 1
            ready = stable & (confidence > self.min_confidence) & waited[:, None]
        else:
            ready = stable & (confidence >= self.min_confidence)
        forced = ~ready.any(-1)
        chosen = self.choose(ready, confidence, kl, obs)
        commit = torch.where(forced[:, None], self.instead(confidence, obs), chosen)
        # commit the argmax: in the released code, temperature affects only which positions commit
        return Decision(
            commit,
            ready,
            forced,
            recent[..., :-1].contiguous(),
            obs.now.top1,
            {"confidence": confidence, "kl": kl},
        )

    def instead(self, confidence: Tensor, obs: Observation) -> Tensor:
        """Return the forced commits, [B, W]."""
        if self.fallback is not None:
            return policies.fallback(confidence, obs.active, self.fallback)
        return policies.best(confidence, obs.active, obs.quota if obs.blockwise else 1)

    def recent(self, kl: Tensor, carry: Tensor | None) -> Tensor:
        """Return the last `history` divergences, newest first, [B, W, history]."""
        if carry is None:
            carry = torch.full_like(kl, torch.inf)[..., None].expand(*kl.shape, self.history - 1)
        return torch.cat([kl[..., None], carry], dim=-1)

    def choose(self, ready: Tensor, confidence: Tensor, kl: Tensor, obs: Observation) -> Tensor:
        """Return all ready positions, or the one that the strategy picks, [B, W]."""
        if self.unmask_strategy == "all":
            return ready
        if self.unmask_strategy == "max_conf":
            return policies.best(confidence, ready, 1)
        return policies.best(-kl if self.unmask_strategy == "min_kl" else random(obs), ready, 1)


RELEASED = {  # min_confidence and max_kl of the released scripts
    "llada-gsm8k": (0.6, 0.015),
    "llada-math": (0.6, 0.010),
    "llada-humaneval": (0.9, 0.010),
    "llada-mbpp": (0.7, 0.010),
    "dream-gsm8k": (0.9, 0.001),
    "dream-math": (0.9, 0.005),
    "dream-humaneval": (0.8, 0.001),
    "dream-mbpp": (0.9, 0.001),
}
