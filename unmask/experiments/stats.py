"""Means over tasks with intervals: by formula for shares, by bootstrap for other numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot, inf, isinf, sqrt
from statistics import NormalDist, fmean
from typing import Literal

import torch
from torch import Tensor

from unmask.evals.records import Record
from unmask.evals.significance import CONFIDENCE, Interval, wilson
from unmask.experiments.methods import weights
from unmask.experiments.runs import Outcome

DRAWS = 2_000  # resamples
Count = Literal["steps", "forwards"]
FEWEST = 10  # numbers; a bootstrap of fewer is too narrow
NO_INTERVAL = "[?]"  # shown in place of an interval of too few numbers


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.value, low, high)

    def shown(self, digits: int = 1, *, sign: bool = False) -> str:
        """Return the number with its interval in brackets."""
        form = f"{'+' if sign else ''}.{digits}f"
        if isinf(self.low):
            return f"{self.value:{form}} {NO_INTERVAL}"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def macro(values: Mapping[str, float]) -> float:
    """Return the category-macro mean of a value per task."""
    shares = weights(list(values))
    return sum(shares[task] * value for task, value in values.items())


def accuracy(outcomes: Mapping[str, Outcome]) -> Estimate:
    """Return the macro accuracy in percent. Its interval combines Wilson's intervals of the tasks."""
    shares = weights(list(outcomes))
    parts = [
        (shares[task], Estimate(one.accuracy, *wilson(one.correct, len(one.records))))
        for task, one in outcomes.items()
    ]
    return _joined(parts).scaled(100)


def difference(first: Mapping[str, Outcome], second: Mapping[str, Outcome]) -> Estimate:
    """Return the macro accuracy of the second minus that of the first, in points, paired by sample."""
    return macro_gain({task: [gains(first[task].records, second[task].records)] for task in first})


def independent(first: Estimate, second: Estimate) -> Estimate:
    """Return the second minus the first, of two estimates from different samples."""
    value = second.value - first.value
    down = hypot(second.value - second.low, first.high - first.value)
    return Estimate(value, value - down, value + hypot(second.high - second.value, first.value - first.low))


def paired(first: Sequence[Record], second: Sequence[Record]) -> Estimate:
    """Return the difference of two accuracies on the same samples."""
    return mean_gain([gains(first, second)])


def mean_gain(runs: Sequence[Mapping[str, int]]) -> Estimate:
    """Return the mean gain over samples, with Agresti and Min's interval.

    A run gives the gain of each sample, and a sample counts with its mean gain over the runs. Unlike a
    bootstrap, the interval is valid where few samples or none differ.
    """
    shared = [fmean(run[name] for run in runs) for name in runs[0] if all(name in run for run in runs)]
    size, total = (
        len(shared) + 2,
        sum(shared),
    )  # two more samples: half a gain, half a loss, and one without a difference
    variance = (sum(gain**2 for gain in shared) + 1 - total**2 / size) / size**2
    value = total / len(shared)
    low, high = _around(value, total / size, variance)
    return Estimate(value, max(-1.0, low), min(1.0, high))


def macro_gain(runs: Mapping[str, Sequence[Mapping[str, int]]]) -> Estimate:
    """Return the macro mean of the gains of several runs per task, in points."""
    shares = weights(list(runs))
    return _joined([(shares[task], mean_gain(part)) for task, part in runs.items()]).scaled(100)


def gains(first: Sequence[Record], second: Sequence[Record]) -> dict[str, int]:
    """Return what the second run gained on each sample that both have: 1, 0 or -1."""
    before = {record.id: record.correct for record in first}
    return {record.id: record.correct - before[record.id] for record in second if record.id in before}


def _joined(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted sum of independent estimates. On each side, the squares of their errors add up."""
    value = sum(weight * one.value for weight, one in parts)
    down = sqrt(sum((weight * (one.value - one.low)) ** 2 for weight, one in parts))
    up = sqrt(sum((weight * (one.high - one.value)) ** 2 for weight, one in parts))
    return Estimate(value, value - down, value + up)


def flips(first: Sequence[Record], second: Sequence[Record]) -> tuple[int, int, int]:
    """Return how many samples the second run lost and gained, and how many both have."""
    found = list(gains(first, second).values())
    return found.count(-1), found.count(1), len(found)


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of numbers."""
    return Estimate(sum(values) / len(values), *interval(_means(values)))


def macro_mean(values: Mapping[str, Sequence[float]]) -> Estimate:
    """Return the macro mean of numbers per task."""
    shares = weights(list(values))
    drawn = torch.stack(
        [shares[task] * _means(part, number) for number, (task, part) in enumerate(values.items())]
    )
    value = macro({task: sum(part) / len(part) for task, part in values.items()})
    return Estimate(value, *interval(drawn.sum(0)))


def steps(outcomes: Mapping[str, Outcome]) -> Estimate:
    """Return the macro mean of the reverse steps."""
    return macro_mean({task: [float(r.steps) for r in one.records] for task, one in outcomes.items()})


def forwards(outcomes: Mapping[str, Outcome]) -> Estimate:
    """Return the macro mean of the forward passes."""
    return macro_mean({task: [float(r.forwards) for r in one.records] for task, one in outcomes.items()})


def _means(values: Sequence[float], seed: int = 0) -> Tensor:
    """Return the means of resamples, [DRAWS]."""
    if len(values) < FEWEST:
        return torch.full((DRAWS,), torch.nan, dtype=torch.float64)
    return _resamples(len(values), seed) @ torch.tensor(values, dtype=torch.float64) / len(values)


@lru_cache(maxsize=32)
def _resamples(size: int, seed: int) -> Tensor:
    """Return how often each resample draws each of `size` numbers, [DRAWS, size]."""
    picks = torch.randint(size, (DRAWS, size), generator=torch.Generator().manual_seed(seed))
    counts = torch.zeros(DRAWS, size, dtype=torch.float64)
    return counts.scatter_add_(1, picks, torch.ones_like(counts))


def _around(value: float, middle: float, variance: float) -> Interval:
    """Return the interval of a normal distribution, widened to contain the observed value."""
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * sqrt(variance)
    return min(value, middle - reach), max(value, middle + reach)


def interval(drawn: Tensor) -> Interval:
    """Return the middle 95 % of resamples, or infinite bounds if there were too few numbers."""
    if drawn.isnan().any():
        return -inf, inf
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(drawn, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def share(first: Mapping[str, Outcome], second: Mapping[str, Outcome], count: Count) -> Estimate:
    """Return the second's macro mean of a count in percent of the first's, paired by sample."""
    values, drawn = zip(*(_macro_draws(one, count) for one in (first, second)), strict=True)
    return Estimate(values[1] / values[0], *interval(drawn[1] / drawn[0])).scaled(100)


def _macro_draws(outcomes: Mapping[str, Outcome], count: Count) -> tuple[float, Tensor]:
    """Return the macro mean of a count and of its resamples. All methods share the resamples."""
    shares, value, drawn = weights(list(outcomes)), 0.0, torch.zeros(DRAWS, dtype=torch.float64)
    for number, (task, outcome) in enumerate(outcomes.items()):
        ordered = sorted(outcome.records, key=lambda record: record.id)
        numbers = [float(getattr(record, count)) for record in ordered]
        value += shares[task] * sum(numbers) / len(numbers)
        drawn += shares[task] * _means(numbers, number)
    return value, drawn


def saved(first: Mapping[str, Outcome], second: Mapping[str, Outcome], count: Count) -> Estimate:
    """Return how much smaller the second's macro mean of a count is, in percent of the first's."""
    part = share(first, second, count)
    return Estimate(100 - part.value, 100 - part.high, 100 - part.low)


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the mean of the first over the mean of the second, paired by position."""
    value = sum(first) / sum(second)
    return Estimate(value, *interval(_means(first) / _means(second)))


def p_value(estimate: Estimate, bar: float = 0.0) -> float:
    """Return the two-sided p-value of an estimate against a bar.

    The side of the interval that faces the bar counts as that of a normal distribution, so p is below 0.05
    exactly when the 95 % interval excludes the bar.
    """
    if isinf(estimate.low):
        return 1.0
    side = estimate.value - estimate.low if estimate.value > bar else estimate.high - estimate.value
    if side <= 0:
        return float(estimate.value == bar)
    error = side / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return 2 * (1 - NormalDist().cdf(abs(estimate.value - bar) / error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the same order."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


@dataclass(frozen=True, slots=True)
class Curve:
    """Tokens per forward and accuracy of a sampler's settings, [S] from the data and [S, DRAWS] resampled."""

    parallelism: Tensor
    accuracy: Tensor
    drawn_parallelism: Tensor
    drawn_accuracy: Tensor


def curve(settings: Sequence[Mapping[str, Outcome]]) -> Curve:
    """Return the curve of a sampler's settings. All curves of the same samples share the resamples."""
    pace, right, drawn_pace, drawn_right = zip(*map(_place, settings), strict=True)
    values = torch.tensor([pace, right], dtype=torch.float64)
    return Curve(values[0], values[1], torch.stack(drawn_pace), torch.stack(drawn_right))


def _place(outcomes: Mapping[str, Outcome]) -> tuple[float, float, Tensor, Tensor]:
    """Return macro tokens per forward and macro accuracy, of the data and of resamples."""
    shares = weights(list(outcomes))
    pace = right = 0.0
    drawn_pace, drawn_right = torch.zeros(2, DRAWS, dtype=torch.float64)
    for number, (task, outcome) in enumerate(outcomes.items()):
        ordered = sorted(outcome.records, key=lambda record: record.id)
        tokens, forwards, correct = (
            [float(getattr(record, name)) for record in ordered] for name in ("tokens", "forwards", "correct")
        )
        pace += shares[task] * sum(tokens) / sum(forwards)
        right += shares[task] * sum(correct) / len(correct)
        drawn_pace += shares[task] * _means(tokens, number) / _means(forwards, number)
        drawn_right += shares[task] * _means(correct, number)
    return pace, right, drawn_pace, drawn_right


Area = tuple[float, Tensor]  # an AUP and its value on every resample
AUP_LOSS = 0.05  # a setting that is further below the best accuracy of all counts as zero


def aup(curves: Mapping[str, Curve]) -> dict[str, Area]:
    """Return the accuracy under parallelism of each sampler: its value, and that of every resample."""
    best = max(float(one.accuracy.max()) for one in curves.values())
    drawn = torch.stack([one.drawn_accuracy.amax(0) for one in curves.values()]).amax(0)
    return {
        name: (
            float(_area(one.parallelism[:, None], one.accuracy[:, None], torch.tensor([best]))),
            _area(one.drawn_parallelism, one.drawn_accuracy, drawn),
        )
        for name, one in curves.items()
    }


def _area(parallelism: Tensor, accuracy: Tensor, best: Tensor) -> Tensor:
    """Return the area under the best accuracy at no less than x tokens per forward, over x, [S, D] -> [D]."""
    order = parallelism.argsort(0, descending=True)
    pace = parallelism.gather(0, order)
    height = torch.where(accuracy >= best - AUP_LOSS, accuracy, 0.0).gather(0, order).cummax(0).values
    slower = torch.cat([pace[1:], torch.zeros_like(pace[:1])])
    return ((pace - slower) * height).sum(0)


def aup_estimate(area: Area) -> Estimate:
    """Return an accuracy under parallelism with its interval."""
    return Estimate(area[0], *interval(area[1]))


def aup_difference(first: Area, second: Area) -> Estimate:
    """Return the second minus the first, paired by sample."""
    return Estimate(second[0] - first[0], *interval(second[1] - first[1]))
