"""LocalLeap: near a confident position, less confidence is enough (arXiv:2510.07081)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import max_pool1d

from unmask.errors import probability, whole
from unmask.samplers import policies, signals
from unmask.types import Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeap:
    """Commit confident positions (anchors) and less confident ones around them, or else the best one.

    Use it to compare with LocalLeap. On the small models it is as fast as `first-mask` at its authors'
    settings, but less accurate (docs/choosing.md).

    Attributes:
        min_confidence: Least confidence of an anchor, 0 to 1.
        relaxed_confidence: Least confidence of a position near an anchor, 0 to 1.
        radius: Columns on either side of an anchor that are near it, >= 0.
    """

    min_confidence: float = 0.9
    relaxed_confidence: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        probability("min_confidence", self.min_confidence)
        probability("relaxed_confidence", self.relaxed_confidence)
        whole("radius", self.radius, 0)

    @property
    def needs(self) -> Needs:
        return Needs()

    def decide(self, obs: Observation) -> Decision:
        confidence = signals.confidence(obs.now)
        anchors = obs.active & (confidence >= self.min_confidence)
        width = 2 * self.radius + 1
        near = max_pool1d(anchors.float(), width, stride=1, padding=self.radius) > 0
        needed = torch.where(near, self.relaxed_confidence, self.min_confidence)
        eligible = obs.active & (confidence >= needed)
        commit = eligible | policies.best(confidence, obs.active, 1)
        seen = {"confidence": confidence, "near_anchor": near}
        return Decision(commit, eligible, ~eligible.any(-1), signals=seen)
