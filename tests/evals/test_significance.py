"""Statistics against values worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.evals.significance import bootstrap, mcnemar, wilson


def test_wilsons_interval_is_the_textbook_one():
    # 8 of 10, z = 1.96: middle (0.8 + 0.19208) / 1.38416, reach 1.96 * sqrt(0.016 + 0.009604) / 1.38416
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=5e-5)  # 3.8416 / 13.8416


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_holds_the_share_and_mirrors(counts):
    correct, total = counts
    low, high = wilson(correct, total)
    assert 0 <= low <= correct / total <= high <= 1
    assert wilson(total - correct, total) == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize(("correct", "total"), [(1, 0), (3, 2), (-1, 4)])
def test_a_share_of_nothing_is_refused(correct, total):
    with pytest.raises(ValueError, match="0 <= correct <= total"):
        wilson(correct, total)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [
        (0, 0, 1.0),
        (1, 5, 2 * (1 + 6) / 64),
        (2, 10, 2 * (1 + 12 + 66) / 4096),
        (3, 3, 1.0),
        (0, 8, 2 / 256),
    ],
)
def test_mcnemars_test_is_the_exact_binomial_one(lost, gained, p):
    assert mcnemar(lost, gained) == pytest.approx(p)
    assert mcnemar(gained, lost) == pytest.approx(p)


def test_mcnemars_test_takes_thousands_of_flips():
    assert 0.9 < mcnemar(3000, 3001) <= 1.0
    assert mcnemar(2000, 4000) < 1e-100


def test_the_bootstrap_is_that_of_resampled_pairs():
    lost, gained, total = 12, 30, 200
    rng = random.Random(3)
    pairs = [-1] * lost + [1] * gained + [0] * (total - lost - gained)
    means = sorted(sum(rng.choices(pairs, k=total)) / total for _ in range(4000))
    plain = means[100], means[3899]
    assert bootstrap(lost, gained, total) == pytest.approx(plain, abs=0.012)


def test_the_bootstrap_follows_its_seed():
    assert bootstrap(10, 20, 300, seed=1) == bootstrap(10, 20, 300, seed=1)
    found = {bootstrap(100, 200, 3001, seed=seed) for seed in range(4)}
    assert len(found) > 1


def test_the_bootstrap_knows_the_ends():
    assert bootstrap(0, 0, 5) == (0.0, 0.0)
    assert bootstrap(0, 5, 5) == (1.0, 1.0)
    assert bootstrap(5, 0, 5) == (-1.0, -1.0)
