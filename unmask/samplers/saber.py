"""Saber: a threshold that follows the run, and commits that are taken back (arXiv:2510.18165).

The threshold is the mean confidence of the block's commits, each when last committed, and 1 before the first.
If too few positions pass, the `number` most confident ones are committed. While masks remain, some committed
positions are masked again: those whose confidence rose least since the last step, even commits of this step.
Fewer are masked than committed, so a block of n masks is complete after n steps at most.

When fewer than `number` masks are left, the released code also overwrites committed tokens, even outside the
block. This one does not. Its threshold and its changes start again in every block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import whole
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation

NEVER = -1.0  # stands in for the confidence of a position that was never committed
SHARE = 8  # one of every 8 commits is masked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Saber:
    """Commit what is more confident than earlier commits; mask again what gained the least confidence.

    Use it to compare with Saber. It is better than `base` on mini-dream and worse on mini-llada
    (docs/choosing.md).

    Attributes:
        number: Fewest positions chosen per step, n in the paper; >= 1. One of every 8 chosen, and at least n
            // 2, is masked again.
    """

    number: int = 2

    def __post_init__(self) -> None:
        whole("number", self.number, 1)

    @property
    def needs(self) -> Needs:
        return Needs(lookback=1, revoke=True, carry=1)

    def decide(self, obs: Observation) -> Decision:
        assert obs.written is not None, "Needs(revoke=True) promises it"
        confidence = signals.confidence(obs.now)
        committed = torch.full_like(confidence, NEVER) if obs.carry is None else obs.carry
        threshold = self.threshold(committed)
        eligible = obs.active & (confidence > threshold)
        forced = eligible.sum(-1) < self.number
        best = policies.best(confidence, obs.active, self.number)
        chosen = torch.where(forced[:, None], best, eligible)
        change = confidence - signals.confidence(obs.past[0]) if obs.past else confidence
        returns = policies.best(-change, obs.written | chosen, self.returns(chosen, obs.active))
        return Decision(
            chosen & ~returns,
            eligible,
            forced,
            torch.where(chosen, confidence, committed),
            signals={
                "confidence": confidence,
                "threshold": threshold.float().expand_as(confidence),
                "change": change,
            },
            revoke=returns & obs.written,
        )

    def threshold(self, committed: Tensor) -> Tensor:
        """Return the mean confidence of the commits so far, 1 before the first, [B, 1] float64."""
        known = committed != NEVER
        count = known.sum(-1, keepdim=True)
        # in float64 the sum does not depend on its order, and so not on the batch
        mean = torch.where(known, committed.double(), 0).sum(-1, keepdim=True) / count.clamp(min=1)
        return mean.masked_fill(count == 0, 1)

    def returns(self, chosen: Tensor, active: Tensor) -> Tensor:
        """Return how many positions to mask again, [B]. It is 0 if the step leaves no mask."""
        count, masks = chosen.sum(-1), active.sum(-1)
        wanted = (-(-count // SHARE)).clamp(min=self.number // 2)
        return torch.minimum(wanted, count - 1).masked_fill(count == masks, 0)
