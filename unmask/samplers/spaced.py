"""The spacing filter of DUS around any sampler: positions committed in one step keep their distance.

Tokens close to each other depend on each other, and one forward predicts each without the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from unmask.errors import FieldError, whole
from unmask.samplers import policies, signals
from unmask.samplers.end_last import EndLast
from unmask.samplers.wrapper import Wrapper, layers
from unmask.types import Decision, Observation

WIDEST = 8  # the adaptive gap while everything is masked
NARROWEST = 2


@dataclass(frozen=True, slots=True)
class Spaced(Wrapper):
    """Keep only those commits that are `gap` columns apart, the most confident first.

    Use it if tokens that are committed together contradict each other. It costs forwards. The setting
    `min_gap` of a configuration does the same.

    Attributes:
        sampler: The sampler whose commits are filtered.
        gap: Least distance of two commits of one step in columns, >= 1. None means 8 times the masked
            share of the window, at least 2, as in DUS.
    """

    gap: int | None = None

    def __post_init__(self) -> None:
        Wrapper.__post_init__(self)
        if self.gap is not None:
            whole("gap", self.gap, 1)
        if any(isinstance(layer, EndLast) for layer in layers(self.sampler)):
            problem = "must not hold EndLast, whose end tokens need the commits before them"
            raise FieldError("sampler", self.sampler, problem, "write EndLast(Spaced(sampler))")

    def decide(self, obs: Observation) -> Decision:
        decision = self.sampler.decide(obs)
        column = torch.arange(obs.masked.shape[-1], device=obs.masked.device)
        distance = (column - column[:, None]).abs()
        if self.gap is None:
            gap = (obs.masked.sum(-1) * WIDEST // len(column)).clamp(min=NARROWEST)
            conflict = distance < gap[:, None, None]
        else:
            conflict = (distance < self.gap).expand(len(obs.masked), -1, -1)
        chosen = policies.apart(signals.confidence(obs.now), decision.commit, conflict)
        too_close = decision.commit & ~chosen
        return replace(
            decision,
            commit=chosen,
            eligible=decision.eligible & ~too_close,
            signals={**decision.signals, "too_close": too_close},
        )
