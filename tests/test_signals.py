"""Stability signals on hand-made predictions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.toy import log_probs, observe, predict
from unmask.decoding.summary import summarize
from unmask.samplers import signals
from unmask.types import HiddenStates, Prediction

LN2 = math.log(2)


def probs(*rows: list[float], top_k: int = 8) -> Prediction:
    return predict(log_probs(rows), top_k)


def test_confidence_is_the_probability_of_the_winner():
    assert signals.confidence(probs([0.2, 0.5, 0.3], [1.0, 0.0, 0.0]))[0].tolist() == pytest.approx(
        [0.5, 1.0]
    )


def test_probability_is_that_of_the_given_tokens():
    now = probs([0.2, 0.5, 0.3], [0.2, 0.5, 0.3], top_k=2)
    assert signals.probability(now, torch.tensor([[0, 2]]))[0].tolist() == pytest.approx([0.2, 0.3])


def test_margin_is_the_difference_of_probabilities_and_logit_margin_that_of_logits():
    now = predict([[1.0, 4.0, 2.5], [3.0, 3.0, 0.0]])
    assert signals.logit_margin(now)[0].tolist() == pytest.approx([1.5, 0.0])
    p = torch.tensor([1.0, 4.0, 2.5]).softmax(-1)
    assert signals.margin(now)[0].tolist() == pytest.approx([float(p[1] - p[2]), 0.0], abs=1e-6)


def test_entropy_is_in_nats_over_the_whole_vocabulary_and_rules_out_nothing():
    assert signals.entropy(probs([0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], top_k=2))[
        0
    ].tolist() == pytest.approx([math.log(4), 0.0, LN2], abs=1e-6)


@pytest.mark.parametrize(
    ("winners", "length", "expected"),
    [
        ([2], 1, True),  # this observation alone
        ([2], 2, False),  # too little history
        ([2, 2], 2, True),
        ([2, 1], 2, False),
        ([2, 2, 2], 3, True),
        ([2, 2, 1], 3, False),
        ([2, 1, 2], 3, False),
        ([2, 2, 1], 2, True),  # what lies further back does not matter
        ([2, 2], 3, False),
    ],
)
def test_persistence_counts_equal_winners_with_this_observation(winners, length, expected):
    now, *past = [probs([0.8 if v == winner else 0.1 for v in range(3)]) for winner in winners]
    assert signals.persistence(observe(now, *past), length).tolist() == [[expected]]


def test_history_that_belongs_to_another_row_does_not_count():
    now = probs([0.8, 0.2])
    assert signals.persistence(observe(now, now, now, seen=1), 3).tolist() == [[False]]
    assert signals.persistence(observe(now, now, now, seen=2), 3).tolist() == [[True]]
    assert signals.topk_jsd(observe(now, now, seen=0), top_k=2, exact=True).tolist() == [[math.inf]]
    assert signals.kl_step(observe(now, now, seen=0)).tolist() == [[math.inf]]


def test_the_first_observation_has_infinite_divergence():
    now = probs([0.8, 0.2])
    for exact in (True, False):
        assert signals.topk_jsd(observe(now), top_k=8, exact=exact).tolist() == [[math.inf]]
    assert signals.kl_step(observe(now)).tolist() == [[math.inf]]


def test_jsd_of_disjoint_distributions_is_ln_2():
    p, q = probs([1.0, 0.0]), probs([0.0, 1.0])
    for exact in (True, False):
        assert signals.jsd(p, q, exact=exact).tolist() == [[pytest.approx(LN2)]]


def test_exact_jsd_gives_both_sides_their_true_mass_and_summary_zero_to_strangers():
    # K = 1: supports {0} and {1}; exact bins (.5, .4 | .1) and (.4, .5 | .1)
    p, q = probs([0.5, 0.4, 0.1], top_k=1), probs([0.4, 0.5, 0.1], top_k=1)
    exact = 0.9 * math.log(1 / 0.45) + 0.5 * math.log(0.5) + 0.4 * math.log(0.4)
    assert float(signals.jsd(p, q, exact=True)) == pytest.approx(exact, abs=1e-6)
    # summary bins (.5, 0 | .5) and (0, .5 | .5): only half of the mass overlaps
    assert float(signals.jsd(p, q, exact=False)) == pytest.approx(LN2 / 2, abs=1e-6)


def test_topk_jsd_looks_at_no_more_candidates_than_it_is_told():
    now, before = probs([0.5, 0.3, 0.2]), probs([0.5, 0.2, 0.3])
    with_one = signals.topk_jsd(observe(now, before), top_k=1, exact=True)
    with_all = signals.topk_jsd(observe(now, before), top_k=3, exact=True)
    assert float(with_one) == pytest.approx(0.0, abs=1e-6)  # the winner did not move
    assert float(with_all) > 0.005


def test_topk_jsd_and_kl_compare_with_the_newest_past():
    now, close, far = probs([0.6, 0.4]), probs([0.6, 0.4]), probs([0.1, 0.9])
    assert float(signals.topk_jsd(observe(now, close, far), top_k=2, exact=True)) == 0.0
    assert float(signals.kl_step(observe(now, far, close))) > 0.5


def test_kl_is_of_now_from_before_in_this_direction():
    now, before = probs([0.9, 0.1]), probs([0.5, 0.5])
    forward = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert float(signals.kl(now, before)) == pytest.approx(forward, abs=1e-6)
    assert float(signals.kl_step(observe(now, before))) == pytest.approx(forward, abs=1e-6)


def test_kl_counts_a_token_that_was_ruled_out_as_klass_does():
    narrow, wide = probs([1.0, 0.0]), probs([0.5, 0.5])
    assert float(signals.kl(wide, narrow)) == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5e12))
    assert float(signals.kl(narrow, wide)) == pytest.approx(LN2)
    nearly = probs([1 - 1e-11, 1e-11])  # the floor makes 1.1e-11 of it
    expected = 0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1.1e-11)
    assert float(signals.kl(wide, nearly)) == pytest.approx(expected)


def test_a_summary_needs_no_logits_and_the_exact_signals_say_so():
    now = probs([0.6, 0.4]).without_logits()
    assert float(signals.jsd(now, now, exact=False)) == 0.0
    for exact in (lambda: signals.jsd(now, now), lambda: signals.kl(now, now), lambda: signals.entropy(now)):
        with pytest.raises(ValueError, match="kept no logits"):
            exact()


@pytest.mark.parametrize("banned", [(), (3,)])
@pytest.mark.parametrize("vocabulary", [6, 40])
def test_exact_jsd_from_hidden_states_is_that_from_full_logits(vocabulary, banned):
    generator = torch.Generator().manual_seed(vocabulary)
    weight = torch.randn(vocabulary, 5, generator=generator)
    made = []
    for _ in range(2):
        states = torch.randn(3, 7, 5, generator=generator)
        logits = states @ weight.T
        logits[..., list(banned)] = -torch.inf
        made.append((summarize(logits, 8), HiddenStates(states, weight)))
    now, before = (prediction for prediction, _ in made)
    recalled = [replace(prediction, logits=None, hidden=hidden) for prediction, hidden in made]
    expected = signals.jsd(now, before)
    torch.testing.assert_close(signals.jsd(*recalled), expected, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(signals.jsd(now, recalled[1]), expected, atol=1e-6, rtol=1e-4)
    assert expected.min() > 1e-4
