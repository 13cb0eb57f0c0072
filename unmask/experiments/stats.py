"""Intervals of means over several tasks: of shares by formula, of other numbers by resampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from unmask.evals.records import Record
from unmask.evals.significance import CONFIDENCE, Interval
from unmask.experiments.methods import weights
from unmask.experiments.runs import Outcome

DRAWS = 2_000  # resamples
FEWEST = 10  # numbers; a bootstrap of fewer is far too sure of itself


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.value, low, high)

    def shown(self, digits: int = 1, *, sign: bool = False) -> str:
        """The number with its interval in brackets."""
        form = f"{'+' if sign else ''}.{digits}f"
        if isinf(self.low):
            return f"{self.value:{form}} [?]"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def macro(values: Mapping[str, float]) -> float:
    """The category-macro mean of a value per task."""
    shares = weights(list(values))
    return sum(shares[task] * value for task, value in values.items())


def accuracy(outcomes: Mapping[str, Outcome]) -> Estimate:
    """Macro accuracy in percent, with the interval of Agresti and Coull."""
    shares = weights(list(outcomes))
    middle = variance = 0.0
    for task, outcome in outcomes.items():
        size = len(outcome.records) + 4
        share = (outcome.correct + 2) / size
        middle += shares[task] * share
        variance += shares[task] ** 2 * share * (1 - share) / size
    value = macro({task: outcome.accuracy for task, outcome in outcomes.items()})
    low, high = _around(value, middle, variance)
    return Estimate(value, max(0.0, low), min(1.0, high)).scaled(100)


def difference(first: Mapping[str, Outcome], second: Mapping[str, Outcome]) -> Estimate:
    """Macro accuracy of the second less that of the first, in points, paired by sample.

    The interval is Agresti and Min's: unlike a bootstrap it stays honest where few samples or none flip.
    """
    shares = weights(list(first))
    value = middle = variance = 0.0
    for task in first:
        lost, gained, total = flips(first[task].records, second[task].records)
        size, ups, downs = total + 2, gained + 0.5, lost + 0.5
        value += shares[task] * (gained - lost) / total
        middle += shares[task] * (ups - downs) / size
        variance += shares[task] ** 2 * (ups + downs - (ups - downs) ** 2 / size) / size**2
    low, high = _around(value, middle, variance)
    return Estimate(value, max(-1.0, low), min(1.0, high)).scaled(100)


def flips(first: Sequence[Record], second: Sequence[Record]) -> tuple[int, int, int]:
    """How many samples the second run lost and gained, and how many both have."""
    before = {record.id: record.correct for record in first}
    pairs = [(before[record.id], record.correct) for record in second if record.id in before]
    lost, gained = (sum(pair == flip for pair in pairs) for flip in ((True, False), (False, True)))
    return lost, gained, len(pairs)


def mean(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The mean of numbers."""
    drawn = _means(values, torch.Generator().manual_seed(seed))
    return Estimate(sum(values) / len(values), *_interval(drawn))


def macro_mean(values: Mapping[str, Sequence[float]], *, seed: int = 0) -> Estimate:
    """The macro mean of numbers per task."""
    generator = torch.Generator().manual_seed(seed)
    shares = weights(list(values))
    drawn = sum((shares[task] * _means(part, generator) for task, part in values.items()), torch.zeros(()))
    value = macro({task: sum(part) / len(part) for task, part in values.items()})
    return Estimate(value, *_interval(drawn))


def steps(outcomes: Mapping[str, Outcome]) -> Estimate:
    """Macro mean of the reverse steps."""
    return macro_mean({task: [float(r.steps) for r in one.records] for task, one in outcomes.items()})


def forwards(outcomes: Mapping[str, Outcome]) -> Estimate:
    """Macro mean of the forward passes."""
    return macro_mean({task: [float(r.forwards) for r in one.records] for task, one in outcomes.items()})


def _means(values: Sequence[float], generator: torch.Generator) -> Tensor:
    """Means of resamples, [DRAWS]."""
    numbers = torch.tensor(values, dtype=torch.float64)
    picks = torch.randint(len(numbers), (DRAWS, len(numbers)), generator=generator)
    return numbers[picks].mean(-1) if len(numbers) >= FEWEST else torch.full((DRAWS,), torch.nan)


def _around(value: float, middle: float, variance: float) -> Interval:
    """The interval of a normal distribution, stretched to hold the value that was seen."""
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * sqrt(variance)
    return min(value, middle - reach), max(value, middle + reach)


def _interval(drawn: Tensor) -> Interval:
    """The middle 95 % of resamples; without bounds where there were too few numbers."""
    if drawn.isnan().any():
        return -inf, inf
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(drawn, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def ratio(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> Estimate:
    """The mean of the first over the mean of the second, paired by place."""
    generator = torch.Generator().manual_seed(seed)
    above, under = (torch.tensor(part, dtype=torch.float64) for part in (first, second))
    picks = torch.randint(len(above), (DRAWS, len(above)), generator=generator)
    drawn = above[picks].mean(-1) / under[picks].mean(-1)
    if len(above) < FEWEST:
        drawn = torch.full((DRAWS,), torch.nan)
    return Estimate(float(above.mean() / under.mean()), *_interval(drawn))
