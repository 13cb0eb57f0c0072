"""PC: prefer rare tokens and the left of a block (PC-Sampler, now Uncode, arXiv:2508.13021).

The score of a token with probability c and frequency f, `offset` columns into its block, is
min(max_score, -c ln(f + 1e-9)) * exp(-position_weight * offset). The fixed schedule says how many positions
are committed, the score says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import FieldError, finite, positive
from unmask.samplers import policies, signals
from unmask.samplers.frequency import TokenFrequency
from unmask.types import Decision, Needs, Observation

FLOOR = 1e-9  # added to a frequency before its logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class PC:
    """Commit the schedule's quota of the best positions by rarity, confidence and place in the block.

    Use it where texts read from left to right and a forward per token is acceptable. It is the most accurate
    rule on the small tasks.

    Attributes:
        position_weight: How fast a score falls to the right, lambda in the paper; >= 0. 0 means that the
            place does not count.
        max_score: The most that a rare token can score, alpha in the paper; above 0.
        frequencies: How common each token is in a corpus. None means that all are equally common, so that
            confidence and place decide.
    """

    position_weight: float = 0.25
    max_score: float = 10.0
    frequencies: TokenFrequency | None = None

    def __post_init__(self) -> None:
        finite("position_weight", self.position_weight)
        positive("max_score", self.max_score)
        if self.frequencies is not None and not isinstance(self.frequencies, TokenFrequency):
            remedy = "make one with TokenFrequency.count or TokenFrequency.load, or leave it out"
            raise FieldError("frequencies", self.frequencies, "must be a TokenFrequency", remedy)

    @property
    def needs(self) -> Needs:
        return Needs()  # without `span` the window is the block

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.probability(obs.now, obs.drawn)
        value = (confidence * self.information(obs)).clamp(max=self.max_score)
        decay = self.position_weight * torch.arange(value.shape[-1], device=value.device)
        # rank by the logarithm, because far to the right the score itself is rounded to 0
        commit = policies.best(value.log() - decay, obs.active, obs.quota)
        shown = {"score": value * (-decay).exp(), "confidence": confidence}
        return Decision(commit, commit, torch.zeros_like(obs.seen, dtype=torch.bool), signals=shown)

    def information(self, obs: Observation) -> Tensor | float:
        """Return -ln of the frequency of each token to write, [B, W], or one number for all tokens."""
        vocabulary = obs.now.full_logits.shape[-1]
        if self.frequencies is None:
            return -math.log(1 / vocabulary + FLOOR)
        values = self.frequencies.on(obs.drawn.device)
        if len(values) != vocabulary:
            remedy = "count with vocab_size=model.info.vocab_size"
            problem = f"must hold one frequency for each of the model's {vocabulary} tokens"
            raise FieldError("frequencies", self.frequencies, problem, remedy)
        return -(values[obs.drawn] + FLOOR).log()
