"""Rank correlations of samplers across models, with intervals and p-values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

import torch
from torch import Tensor

from unmask.experiments.stats import Area, Estimate, interval

PERMUTATIONS = 2_000


def agreement(pairs: Sequence[tuple[Sequence[Area], Sequence[Area]]]) -> Estimate:
    """Return Kendall's tau of the samplers' areas, averaged over pairs of models, with an interval."""
    taus = [kendall(*(torch.tensor([[area] for area, _ in one]) for one in pair)).item() for pair in pairs]
    drawn = torch.stack(
        [kendall(*(torch.stack([draws for _, draws in one]) for one in pair)) for pair in pairs]
    )
    value = fmean(taus)
    low, high = interval(drawn.mean(0))
    return Estimate(value, min(low, value), max(high, value))


def kendall(first: Tensor, second: Tensor) -> Tensor:
    """Return tau-b of two rankings, [M, D] -> [D]. A tie is no disagreement.

    It is 0 where all values of either ranking are equal.
    """
    lower, upper = torch.tensor(list(combinations(range(len(first)), 2))).reshape(-1, 2).T
    a, b = ((one[lower] - one[upper]).sign().double() for one in (first, second))
    ranked = (a.abs().sum(0) * b.abs().sum(0)).sqrt()
    return torch.where(ranked > 0, (a * b).sum(0) / ranked.clamp(min=1), 0.0)


def spearman(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the rank correlation and its two-sided p-value by permutation."""
    ranks = [_ranks(values) for values in (first, second)]
    observed, rng = _correlation(*ranks), random.Random(0)
    shuffled = list(ranks[1])
    extreme = 0
    for _ in range(PERMUTATIONS):
        rng.shuffle(shuffled)
        extreme += abs(_correlation(ranks[0], shuffled)) >= abs(observed) - 1e-12
    return observed, (extreme + 1) / (PERMUTATIONS + 1)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks. Equal values share their mean rank."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    means = fmean(first), fmean(second)
    pairs = [(x - means[0], y - means[1]) for x, y in zip(first, second, strict=True)]
    spread = (sum(x * x for x, _ in pairs) * sum(y * y for _, y in pairs)) ** 0.5
    return sum(x * y for x, y in pairs) / spread if spread else 0.0
