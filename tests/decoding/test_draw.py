"""Token selection: argmax, temperature, top-p, top-k, and one random stream per row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import log_probs, predict
from unmask import RowNoise, Selection

DRAWS = 20_000


def chi_square(selection: Selection, logits: list[float], expected: list[float]) -> float:
    """Chi-square of the drawn tokens against the expected shares; tokens of share 0 must not appear."""
    noise = RowNoise([7])(torch.tensor([True]), DRAWS)
    now = predict(torch.tensor(logits).expand(1, DRAWS, -1))
    counts = torch.bincount(selection.draw(now, noise).flatten(), minlength=len(logits)).tolist()
    assert all(count == 0 for count, part in zip(counts, expected, strict=True) if part == 0)
    return sum(
        (count - part * DRAWS) ** 2 / (part * DRAWS)
        for count, part in zip(counts, expected, strict=True)
        if part
    )


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    return (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(-1).tolist()


LOGITS = [0.3, -1.0, 1.2, 0.0, 2.0, -0.5]
BOUND = 20.5  # 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_follow_the_softmax_at_the_temperature(temperature):
    assert chi_square(Selection(temperature=temperature), LOGITS, softmax(LOGITS, temperature)) < BOUND


def test_the_chi_square_would_notice_another_temperature():
    assert chi_square(Selection(temperature=1.2), LOGITS, softmax(LOGITS)) > BOUND


def test_top_k_draws_follow_the_softmax_of_what_is_kept():
    kept = [x if x >= 0.3 else -math.inf for x in LOGITS]
    assert chi_square(Selection(temperature=1.0, top_k=3), LOGITS, softmax(kept)) < BOUND


def test_top_p_draws_follow_the_softmax_of_the_nucleus():
    # shares: .53 (id 4), .24 (id 2), .10 (id 0), .07, .04, .03 -> 0.8 is crossed by id 0
    kept = [x if x >= 0.3 else -math.inf for x in LOGITS]
    assert chi_square(Selection(temperature=1.0, top_p=0.8), LOGITS, softmax(kept)) < BOUND


def test_tokens_without_probability_are_never_drawn():
    assert (
        chi_square(Selection(temperature=5.0), [0.0, -math.inf, 1.0], softmax([0.0, -math.inf, 1.0], 5.0))
        < BOUND
    )


def test_temperature_zero_is_the_argmax_whatever_the_noise():
    now = predict([[0.0, 2.0, 2.0]])
    assert Selection().greedy
    for u in (0.001, 0.5, 0.999):
        assert Selection().draw(now, torch.tensor([[u]])).tolist() == [[1]]


def test_without_noise_a_draw_is_the_argmax():
    assert Selection(temperature=1.0).draw(predict([[0.0, 2.0]]), None).tolist() == [[1]]


@pytest.mark.parametrize(
    ("u", "token"), [(1e-9, 2), (0.59, 2), (0.61, 0), (0.89, 0), (0.91, 1), (0.9999999, 1)]
)
def test_noise_walks_down_from_the_most_likely_token(u, token):
    now = predict(log_probs([[0.3, 0.1, 0.6]]))
    assert Selection(temperature=1.0).draw(now, torch.tensor([[u]])).tolist() == [[token]]


def test_top_k_keeps_that_many_and_more_only_where_they_tie():
    assert Selection(temperature=1.0, top_k=2).filter(
        torch.tensor([[[3.0, 1.0, 2.0]]])
    ).isfinite().tolist() == [[[True, False, True]]]
    assert Selection(temperature=1.0, top_k=9).filter(torch.tensor([[[3.0, 1.0]]])).isfinite().all()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.1, [False, True, False]),  # the best always stays
        (0.5, [False, True, False]),
        (0.65, [True, True, False]),  # 0.6 is not enough, the token that crosses the bar stays
        (0.95, [True, True, True]),
        (1.0, [True, True, True]),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p, kept):
    logits = log_probs([[0.3, 0.6, 0.1]])[None]
    assert Selection(temperature=1.0, top_p=top_p).filter(logits).isfinite().tolist() == [[kept]]


def test_the_nucleus_is_measured_after_temperature_and_top_k():
    logits = log_probs([[0.4, 0.4, 0.2]])[None]
    both = Selection(temperature=1.0, top_k=2, top_p=0.45)  # .5 and .5 after top-k: the first reaches the bar
    assert both.filter(logits).isfinite().tolist() == [[[True, False, False]]]
    cold = Selection(temperature=0.05, top_p=0.6)
    assert cold.filter(log_probs([[0.5, 0.3, 0.2]])[None]).isfinite().tolist() == [[[True, False, False]]]


def test_the_filter_divides_by_the_temperature_and_leaves_the_given_logits_alone():
    logits = torch.tensor([[[1.0, 2.0]]])
    halved = Selection(temperature=2.0).filter(logits)
    torch.testing.assert_close(halved.softmax(-1), torch.tensor([[[0.5, 1.0]]]).softmax(-1))
    assert Selection(temperature=2.0, top_k=1).filter(logits).softmax(-1).tolist() == [[[0.0, 1.0]]]
    assert logits.tolist() == [[[1.0, 2.0]]]


def test_a_tiny_temperature_is_as_good_as_argmax():
    draw = Selection(temperature=1e-39).draw(predict([[1.0, 2.0, 3.0]]), torch.tensor([[0.5]]))
    assert draw.tolist() == [[2]]


@settings(max_examples=50)
@given(seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=4), width=st.integers(1, 6))
def test_a_row_s_stream_does_not_depend_on_its_neighbours(seeds, width):
    everyone = torch.ones(len(seeds), dtype=torch.bool)
    together = RowNoise(seeds)
    noise = torch.cat([together(everyone, width) for _ in range(2)], dim=1)
    for row, seed in enumerate(seeds):
        alone = RowNoise([seed])
        mine = torch.cat([alone(torch.tensor([True]), width) for _ in range(2)], dim=1)
        assert torch.equal(noise[row], mine[0])
    assert ((noise > 0) & (noise < 1)).all()


def test_a_row_that_idles_does_not_advance_its_stream():
    noise, both = RowNoise([1, 2]), torch.tensor([True, True])
    noise(torch.tensor([True, False]), 3)
    assert torch.equal(noise(both, 3)[1], RowNoise([2])(torch.tensor([True]), 3)[0])


def test_noise_is_uniform():
    noise = RowNoise([3])(torch.tensor([True]), DRAWS)[0]
    counts = torch.histc(noise, 10, 0, 1)
    assert float(((counts - DRAWS / 10) ** 2 / (DRAWS / 10)).sum()) < 27.9  # 9 degrees of freedom, p = 0.001
