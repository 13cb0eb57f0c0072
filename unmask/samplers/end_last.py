"""The end rule around any sampler: an end token waits for every mask before it.

A canvas is longer than its text, and end tokens fill the rest. A model predicts them with confidence long
before it knows the text. An end token that is written early cuts the text short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from unmask.decoding.canvas import is_any
from unmask.samplers import policies
from unmask.samplers.wrapper import Wrapper
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True)
class EndLast(Wrapper):
    """Commit an end token only when everything masked before it is committed already or in the same step.

    Use it around a rule that ends its texts too early. The setting
    end_tokens="last" of a configuration does the same.

    The sampler is asked twice: as usual, and with the positions of early end tokens hidden. The first answer
    says which end tokens it accepts, the second what it commits in their place.

    Attributes:
        sampler: The sampler whose end tokens wait.
    """

    @property
    def needs(self) -> Needs:
        return replace(self.sampler.needs, ends_last=True)

    def decide(self, obs: Observation) -> Decision:
        first = self.sampler.decide(obs)
        if not obs.eos_ids:
            return first
        early = is_any(_written(first, obs), obs.eos_ids) & _behind(obs.masked)
        second = self.sampler.decide(replace(obs, active=obs.active & ~early, masked=obs.masked & ~early))
        tokens = _written(first, obs).where(early, _written(second, obs))
        accepted = first.commit & early & ~first.forced[:, None]
        wanted = second.commit & ~early | accepted
        left = obs.masked & ~wanted
        if second.revoke is not None:
            left = left | second.revoke
        blocked = is_any(tokens, obs.eos_ids) & _behind(left)
        commit = wanted & ~blocked
        # the second answer chose other tokens than the first
        stuck = (second.commit & obs.masked).any(-1) & ~commit.any(-1)
        eligible = (second.eligible & ~early | first.eligible & early) & ~blocked
        return replace(
            second,
            commit=commit | stuck[:, None] & policies.frontier(obs.active),
            eligible=eligible,
            forced=second.forced | stuck,
            tokens=tokens,
            revoke=None if second.revoke is None else second.revoke & ~stuck[:, None],
            signals={**second.signals, "end_waits": blocked & (first.eligible | wanted)},
        )


def _written(decision: Decision, obs: Observation) -> Tensor:
    """Return the tokens that a decision writes, [B, W]."""
    return obs.drawn if decision.tokens is None else decision.tokens


def _behind(positions: Tensor) -> Tensor:
    """Return the columns with one of these positions to their left, [B, W]."""
    return positions.cumsum(-1) - positions.long() > 0
