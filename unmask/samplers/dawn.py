"""DAWN: commit positions together only if they do not attend to each other (arXiv:2602.06953).

As in the released code, a less sure position must not attend to one that is both sure and induced. The paper
says "sure or induced". Unlike the released code, this one never overwrites the first token of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import probability, whole
from unmask.samplers import policies, signals
from unmask.types import Attention, Decision, Needs, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Dawn:
    """Commit sure positions, those that attend to a sure token, and others that do not attend to each other.

    Use it to compare with DAWN on a model that returns its attention. It does not work with a cache, with
    guidance or in the server. On the small models it is as fast as `first-mask` at its authors' settings, but
    less accurate (docs/choosing.md).

    Attributes:
        min_confidence: Least confidence of a sure position or token, 0 to 1.
        induced_confidence: Least confidence of a position that attends to a sure token, 0 to 1.
        low_confidence: Least confidence of the other positions, 0 to 1. Two of them commit together only if
            neither attends to the other.
        sink: Ignore columns that get more attention than this on average, 0 to 1.
        edge: Attention that makes one column depend on another, 0 to 1.
        layers: Number of last layers whose attention is averaged, >= 1.
    """

    min_confidence: float = 0.9
    induced_confidence: float = 0.7
    low_confidence: float = 0.7
    sink: float = 0.01
    edge: float = 0.07
    layers: int = 4

    def __post_init__(self) -> None:
        for name in ("min_confidence", "induced_confidence", "low_confidence", "sink", "edge"):
            probability(name, getattr(self, name))
        whole("layers", self.layers, 1)

    @property
    def needs(self) -> Needs:
        return Needs(attention=self.layers)

    def decide(self, obs: Observation) -> Decision:
        confidence, attention = signals.confidence(obs.now), obs.attention
        here = slice(attention.first, attention.first + confidence.shape[1])
        depends = self.edges(attention)[:, here]
        anchors = attention.filled & (attention.confidence >= self.min_confidence)
        anchored = (depends & anchors[:, None])[..., : here.stop].any(-1)
        sure = obs.active & (confidence >= self.min_confidence)
        induced = obs.active & anchored & (confidence >= self.induced_confidence)
        inside = depends[..., here]
        bound = (inside & (sure & induced)[:, None]).any(-1)
        rest = obs.active & ~sure & ~induced & ~bound & (confidence >= self.low_confidence)
        eligible = sure | induced | policies.apart(confidence, rest, inside | inside.mT)
        forced = ~eligible.any(-1)
        commit = torch.where(forced[:, None], policies.best(confidence, obs.active, 1), eligible)
        return Decision(commit, eligible, forced, signals={"confidence": confidence, "anchored": anchored})

    def edges(self, attention: Attention) -> Tensor:
        """Return which column [B, N] depends on which other one, [B, N, N] bool."""
        weights, real = attention.weights, attention.real
        mean = weights.masked_fill(~real[..., None], 0).sum(1) / real.sum(-1, keepdim=True)
        edges = (weights >= self.edge) & (mean <= self.sink)[:, None]
        edges.diagonal(dim1=1, dim2=2).fill_(False)
        return edges
