"""A run that an experiment needs, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from unmask.evals.records import Record, Timing, digest, settings_of
from unmask.samplers.wrapper import kind
from unmask.text.config import GenerationConfig
from unmask.types import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A model, a task and a sampler. Equal runs are made once."""

    model: str
    task: str
    sampler: Sampler
    config: GenerationConfig
    protocol: str | None = None  # None means the task's first

    def name(self, samples: int, version: int, *, compiled: bool = False) -> str:
        """Return the run's name in the store: the sampler's kind and a hash of all settings."""
        chosen = [settings_of(self.sampler), settings_of(self.config), samples, version]
        chosen += ["compiled"] if compiled else []
        chosen += [] if self.protocol is None else [self.protocol]
        return f"{self.prefix}-{digest(chosen)[:12]}"

    @property
    def prefix(self) -> str:
        """The sampler's kind as the first part of a name."""
        return kind(self.sampler).lower().replace("(", "-").rstrip(")")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The records of a finished run."""

    records: tuple[Record, ...]
    timings: tuple[Timing, ...]
    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def correct(self) -> int:
        """The number of correct texts."""
        return sum(record.correct for record in self.records)

    @property
    def accuracy(self) -> float:
        """The share of correct texts."""
        return self.correct / len(self.records)

    @property
    def steps(self) -> float:
        """Reverse steps per sample."""
        return fmean(record.steps for record in self.records)

    @property
    def forwards(self) -> float:
        """Forward passes per sample."""
        return fmean(record.forwards for record in self.records)

    @property
    def seconds(self) -> float:
        """Seconds of decoding per sample, at the run's batch size."""
        return sum(timing.seconds for timing in self.timings) / len(self.records)

    @property
    def forced_share(self) -> float:
        """Share of steps in which the fallback acted."""
        return fmean(record.forced_share for record in self.records)

    @property
    def budget(self) -> int:
        """The most reverse steps that a sample could take."""
        steps: int = self.configuration["decoding"]["steps"]
        return steps

    def spending_all(self) -> Outcome:
        """Return the outcome as if the sampler did not stop at the end of a text.

        Tokens after the end cannot change the text before it, so only the cost differs.
        """
        full = tuple(replace(record, steps=self.budget, forwards=self.budget) for record in self.records)
        return replace(self, records=full)
