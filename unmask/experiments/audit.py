"""Statistics of single decoding steps, counted during the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from unmask.evals.batches import encode, make_batches
from unmask.evals.records import settings_of
from unmask.evals.task import Sample
from unmask.experiments.lab import Lab
from unmask.experiments.runs import Run
from unmask.samplers.wrapper import kind
from unmask.text.config import GenerationConfig
from unmask.text.generate import prepare
from unmask.text.prompts import TextModel
from unmask.types import Sampler, Step

SAMPLES = 50  # per task, as in the paper


@dataclass(slots=True)
class Trail:
    """The counts of one sample, with an entry per step."""

    commits: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)  # whether the fallback acted
    empty: list[bool] = field(default_factory=list)  # whether nothing was eligible
    flips: list[int] = field(default_factory=list)  # masked positions whose top-1 token changed
    watched: list[int] = field(default_factory=list)  # masked positions that an earlier step of the block saw


def audited(lab: Lab, run: Run) -> list[Trail]:
    """Return the trails of a run's first samples. Like a run, they are kept in the store."""
    samples = lab.samples(run.task, SAMPLES)
    settings = {
        "task": run.task,
        "samples": len(samples),
        "sampler": [kind(run.sampler), settings_of(run.sampler)],
        "config": settings_of(run.config),
    }

    def make() -> list[dict[str, Any]]:
        model = lab.model(run.model)
        trails = audit(model, samples, run.sampler, run.config, batch_size=lab.batch_size(model))
        return [asdict(trail) for trail in trails]

    return [Trail(**trail) for trail in lab.measurement(run.model, "audit", settings, make)]


def audit(
    model: TextModel,
    samples: Sequence[Sample],
    sampler: Sampler,
    config: GenerationConfig,
    *,
    batch_size: int,
) -> list[Trail]:
    """Return a trail per sample, in the order of the batches."""
    trails: list[Trail] = []
    for batch in make_batches(encode(model, samples, config.new_tokens(model.info)), batch_size):
        run = prepare(model, [one.ids for one in batch.samples], sampler, config)
        counter = _Counter([Trail() for _ in batch.samples], model.info.mask_id)
        for step in run.steps:
            counter.add(step)
        trails += counter.trails
    return trails


@dataclass(slots=True)
class _Counter:
    """Counts the steps of one batch."""

    trails: list[Trail]
    mask_id: int
    block: int = -1
    before: Tensor | None = None  # [B, W] top-1 tokens of the previous step in this block

    def add(self, step: Step) -> None:
        """Count a step for every row that took it."""
        if step.leftover:
            return
        if step.block != self.block:
            self.block, self.before = step.block, None
        decision = step.decision
        masked = (step.tokens[:, step.window] == self.mask_id) | decision.commit
        before = step.drawn if self.before is None else self.before
        watched = masked if self.before is not None else masked & False
        counts = zip(
            self.trails,
            step.running.tolist(),
            decision.commit.sum(-1).tolist(),
            decision.forced.tolist(),
            (~decision.eligible.any(-1)).tolist(),
            (watched & (step.drawn != before)).sum(-1).tolist(),
            watched.sum(-1).tolist(),
            strict=True,
        )
        for trail, running, *values in counts:
            if running:
                names = ("commits", "forced", "empty", "flips", "watched")
                for name, value in zip(names, values, strict=True):
                    getattr(trail, name).append(value)
        self.before = step.drawn
