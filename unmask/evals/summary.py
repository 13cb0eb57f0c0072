"""The summary of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch

from unmask.evals.manifest import Manifest
from unmask.evals.records import Record, Timing
from unmask.evals.significance import Interval, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Quality, cost and origin of a run.

    Attributes:
        task: Name of the task.
        protocol: Name of the protocol, which sets prompts and scoring.
        samples: Number of samples.
        correct: Number of right answers.
        accuracy: Share of right answers, 0 to 1.
        interval: 95 % interval of the accuracy (Wilson).
        also: Accuracy under other scorings, by name.
        mean_steps: Mean number of reverse steps per sample.
        median_steps: Median number of reverse steps per sample.
        mean_forwards: Mean number of forward passes per sample.
        tokens_per_forward: Tokens up to the end of the texts, divided by all forwards.
        forced_share: Share of steps in which no position passed the rule, so the fallback chose; mean over
            samples.
        leftovers: Tokens filled in after the step budget was spent.
        p50_seconds: Median over the samples of their batch's decoding time divided by its rows; the latency
            at batch size 1.
        p95_seconds: 95th percentile of the same time.
        decode_seconds: Decoding time, summed over the batches of all workers.
        score_seconds: Time of scoring.
        wall_seconds: Time from the first batch to the last, without the pauses of a resumed run.
        peak_memory: Most memory in use, in bytes.
        configuration: Everything that can change a text.
        environment: Versions, device and date.
    """

    task: str
    protocol: str
    samples: int
    correct: int
    accuracy: float
    interval: Interval
    also: Mapping[str, float]
    mean_steps: float
    median_steps: float
    mean_forwards: float
    tokens_per_forward: float
    forced_share: float
    leftovers: int
    p50_seconds: float
    p95_seconds: float
    decode_seconds: float
    score_seconds: float
    wall_seconds: float
    peak_memory: int
    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]


def summarize(records: Sequence[Record], timings: Sequence[Timing], manifest: Manifest) -> Summary:
    """Summarize a finished run."""
    task = manifest.configuration["task"]
    correct = sum(record.correct for record in records)
    p50, p95 = _quantiles(timings, 0.5, 0.95)
    return Summary(
        task=task["name"],
        protocol=task["protocol"],
        samples=len(records),
        correct=correct,
        accuracy=correct / len(records),
        interval=wilson(correct, len(records)),
        also=other_accuracies(records),
        mean_steps=fmean(record.steps for record in records),
        median_steps=median(record.steps for record in records),
        mean_forwards=fmean(record.forwards for record in records),
        tokens_per_forward=sum(record.tokens for record in records)
        / max(1, sum(record.forwards for record in records)),
        forced_share=fmean(record.forced_share for record in records),
        leftovers=sum(record.leftovers for record in records),
        p50_seconds=p50,
        p95_seconds=p95,
        decode_seconds=sum(timing.seconds for timing in timings),
        score_seconds=sum(timing.scoring for timing in timings),
        wall_seconds=sum(timing.wall for timing in timings),
        peak_memory=max(timing.peak_memory for timing in timings),
        configuration=manifest.configuration,
        environment=manifest.environment,
    )


def other_accuracies(records: Sequence[Record]) -> dict[str, float]:
    """Return the accuracy under every other scoring of the task."""
    names = dict.fromkeys(name for record in records for name in record.also)
    return {name: fmean(record.also.get(name, False) for record in records) for name in names}


def _quantiles(timings: Sequence[Timing], *shares: float) -> list[float]:
    """Return quantiles of the seconds per row; each row counts once."""
    seconds = [timing.seconds / timing.rows for timing in timings for _ in range(timing.rows)]
    points = torch.tensor(shares, dtype=torch.float64)
    values: list[float] = torch.quantile(torch.tensor(seconds, dtype=torch.float64), points).tolist()
    return values
