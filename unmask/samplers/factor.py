"""Factor: the n-th most confident position needs confidence >= 1 - factor / (n + 1) (Fast-dLLM)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask import signals
from unmask.checks import at_least, flag
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Commit the ranks before the first that misses its bar; the first rank is free."""

    factor: float = 1.0
    last_rank_free: bool = False  # as released: the very last rank is committed even if it misses its bar

    def __post_init__(self) -> None:
        at_least("factor", self.factor, 0)
        flag("last_rank_free", self.last_rank_free)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        ranked, order = confidence.masked_fill(~obs.active, -1).sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(1, ranked.shape[-1] + 1, device=ranked.device)
        passes = ranked >= 1 - self.factor / (rank + 1)
        free = rank == 1
        if self.last_rank_free:
            free = free | (rank == obs.active.sum(-1, keepdim=True))
        kept = (~(passes | free)).cumsum(-1) == 0
        commit = torch.zeros_like(kept).scatter(-1, order, kept) & obs.active
        forced = obs.active.any(-1) & ~passes[:, 0]
        return Decision(commit, commit & ~forced[:, None], forced, signals={"confidence": confidence})
