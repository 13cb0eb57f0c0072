"""The signals of LESS while a fixed schedule decodes. LESS watches and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch

from unmask.evals.batches import encode, make_batches
from unmask.evals.task import Sample
from unmask.samplers import LESS, Base
from unmask.text.config import GenerationConfig
from unmask.text.generate import prepare
from unmask.text.prompts import TextModel
from unmask.types import Decision, Needs, Observation, Step


@dataclass(frozen=True, slots=True)
class Shadowed:
    """Decides like Base and records the signals of LESS."""

    base: Base
    rule: LESS = field(default_factory=LESS)

    @property
    def needs(self) -> Needs:
        # Base may read full logits, which the gathered logits of a few tokens cannot replace
        return replace(self.rule.needs, logits=True, noise=self.base.needs.noise)

    def decide(self, obs: Observation) -> Decision:
        other = self.rule.decide(obs)
        looked_at = obs.active & (obs.seen > 0)[:, None]  # the first step has nothing to compare with
        seen = {**other.signals, "ready": other.eligible, "looked_at": looked_at}
        return replace(self.base.decide(obs), signals=seen)


@dataclass(slots=True)
class Sight:
    """The sums of one sample over all compared positions of all steps."""

    positions: int = 0
    jsd: float = 0.0
    confidence: float = 0.0
    changed: int = 0  # positions whose top-1 token changed since the previous step
    ready: int = 0  # positions that are eligible under LESS

    def share(self, name: str) -> float:
        """Return the mean of a field over positions."""
        return float(getattr(self, name)) / max(1, self.positions)


def watch(
    model: TextModel, samples: Sequence[Sample], base: Base, config: GenerationConfig, *, batch_size: int
) -> list[dict[str, float]]:
    """Return the sums per sample, in the order of the batches."""
    totals: list[Sight] = []
    for batch in make_batches(encode(model, samples, config.new_tokens(model.info)), batch_size):
        run = prepare(model, [one.ids for one in batch.samples], Shadowed(base), config)
        sights = [Sight() for _ in batch.samples]
        for step in run.steps:
            if not step.leftover:
                _add(sights, step)
        totals += sights
    return [asdict(sight) for sight in totals]


def _add(sights: Sequence[Sight], step: Step) -> None:
    """Count a step for every row that took it."""
    seen = step.decision.signals
    looked_at = seen["looked_at"] & step.running[:, None]
    counts = zip(
        sights,
        looked_at.sum(-1).tolist(),
        torch.where(looked_at, seen["jsd"], 0).sum(-1).tolist(),
        torch.where(looked_at, seen["confidence"], 0).sum(-1).tolist(),
        (looked_at & ~seen["persistence"]).sum(-1).tolist(),
        (looked_at & seen["ready"]).sum(-1).tolist(),
        strict=True,
    )
    for sight, positions, jsd, confidence, changed, ready in counts:
        sight.positions += positions
        sight.jsd += jsd
        sight.confidence += confidence
        sight.changed += changed
        sight.ready += ready
