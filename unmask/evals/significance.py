"""Statistics of accuracy: intervals of a share, and tests of two runs on the same samples."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import torch

CONFIDENCE = 0.95
RESAMPLES = 10_000

Interval = tuple[float, float]


def wilson(correct: int, total: int, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's interval of a share."""
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"a share needs 0 <= correct <= total and one sample, got {correct} of {total}")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, scale = correct / total, 1 + z * z / total
    middle = (share + z * z / (2 * total)) / scale
    reach = z * sqrt(share * (1 - share) / total + z * z / (4 * total**2)) / scale
    return min(share, max(0.0, middle - reach)), max(share, min(1.0, middle + reach))  # against rounding


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact two-sided p-value of these flips, if both directions were equally likely."""
    flips = lost + gained
    tail = ways = 1  # one way for no flip in the rarer direction; the loop adds the ways for more
    for count in range(min(lost, gained)):
        ways = ways * (flips - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << flips))


def bootstrap(
    lost: int, gained: int, total: int, *, seed: int = 0, confidence: float = CONFIDENCE
) -> Interval:
    """Return the bootstrap interval of the difference of two accuracies on paired samples.

    Only the number of flips each way matters in a resample, so these counts are drawn directly.
    """
    if lost == gained == 0:
        return 0.0, 0.0
    generator = torch.Generator().manual_seed(seed)
    size = torch.full((RESAMPLES,), float(total), dtype=torch.float64)
    ups = torch.binomial(size, torch.full_like(size, gained / total), generator=generator)
    rest = torch.full_like(size, lost / max(1, total - gained))
    downs = torch.binomial(size - ups, rest, generator=generator)
    tail = (1 - confidence) / 2
    low, high = torch.quantile(
        (ups - downs) / total, torch.tensor([tail, 1 - tail], dtype=torch.float64)
    ).tolist()
    return low, high
