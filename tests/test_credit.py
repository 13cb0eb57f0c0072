"""Credit: earlier winners are credited, and the fused winner is committed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import Toy, committed, log_probs, observe, predict, run
from unmask import Credit, Threshold
from unmask.decoding.summary import summarize
from unmask.types import Decision, HiddenStates, Prediction


def steps(sampler: Credit, *predictions: Prediction) -> list[Decision]:
    """Decide on one prediction after another, with nothing committed in between."""
    carry, decisions = None, []
    for now in predictions:
        decisions.append(sampler.decide(observe(now, carry=carry)))
        carry = decisions[-1].carry
    return decisions


def winning(*tokens: int, top: float = 0.5) -> list[Prediction]:
    """One-column predictions whose winners are these tokens, of four."""
    rest = (1 - top) / 3
    return [predict(log_probs([[top if i == token else rest for i in range(4)]])) for token in tokens]


def dense(sampler: Credit, tables: list[torch.Tensor]) -> list[torch.Tensor]:
    """The fused probabilities by the rule with a credit for every token of the vocabulary, in float64."""
    credit, answers = torch.zeros_like(tables[0], dtype=torch.float64), []
    for table in tables:
        p = table.double().softmax(-1)
        top, winner = p.max(-1, keepdim=True)
        credit = sampler.decay * credit
        credit.scatter_add_(-1, winner, top**sampler.power)
        answers.append((table.double() + sampler.weight * (1 + credit).log()).softmax(-1))
    return answers


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    weight=st.sampled_from([0.0, 0.7, 3.0]),
    decay=st.sampled_from([0.0, 0.8, 1.0]),
    scale=st.sampled_from([0.3, 2.0, 9.0]),
    banned=st.booleans(),
    hidden=st.booleans(),
)
def test_pairs_give_the_winners_and_confidences_of_a_whole_matrix(seed, weight, decay, scale, banned, hidden):
    generator = torch.Generator().manual_seed(seed)
    head = torch.randn(50, 6, generator=generator)
    states = [torch.randn(2, 5, 6, generator=generator) * scale / 2 for _ in range(9)]
    tables = [each @ head.T for each in states]
    if banned:
        for table in tables:
            table[..., 0] = -torch.inf
    sampler = Credit(weight=weight, decay=decay)
    now = [summarize(table, 2) for table in tables]
    if hidden:
        now = [
            Prediction(each.top_ids, each.top_logits, each.lse, hidden=HiddenStates(state, head))
            for each, state in zip(now, states, strict=True)
        ]
    for decision, fused in zip(steps(sampler, *now), dense(sampler, tables), strict=True):
        ours = decision.signals["confidence"].double(), fused.gather(-1, decision.tokens[..., None])[..., 0]
        for confidence in ours:
            torch.testing.assert_close(confidence, fused.amax(-1), rtol=0, atol=1e-5)


def test_the_first_step_is_credited_already():
    [decision] = steps(Credit(), predict(log_probs([[0.5, 0.5 / 3, 0.5 / 3, 0.5 / 3]])))
    boosted = 0.5 * (1 + 0.5**0.2) ** 0.7
    assert float(decision.signals["confidence"]) == pytest.approx(boosted / (boosted + 0.5), abs=1e-6)
    assert float(decision.signals["raw_confidence"]) == pytest.approx(0.5, abs=1e-6)


def test_a_token_that_keeps_winning_becomes_more_confident():
    shown = [float(decision.signals["confidence"]) for decision in steps(Credit(), *winning(0, 0, 0, 0))]
    assert shown == sorted(set(shown))


def test_without_decay_nothing_is_forgotten_and_with_full_decay_everything():
    forgetful = steps(Credit(decay=0.0), *winning(1, 0, 0))
    assert float(forgetful[1].signals["confidence"]) == float(forgetful[2].signals["confidence"])
    lasting = steps(Credit(decay=1.0), *winning(1, 0, 1, 0))
    assert lasting[-1].carry[..., 1].sum() == pytest.approx(4 * 0.5**0.2, abs=1e-5)


def test_a_credited_token_wins_over_the_winner_of_this_step_and_is_the_one_committed():
    decisions = steps(Credit(weight=3.0), *winning(2, 2, 2), *winning(1, top=0.3))
    assert decisions[-1].tokens.tolist() == [[2]]
    assert committed(decisions[-1]) == "x"


def test_the_fused_winner_is_committed_whatever_was_drawn():
    [now] = winning(3)
    assert Credit().decide(observe(now, drawn=torch.tensor([[1]]))).tokens.tolist() == [[3]]


def test_positions_above_the_threshold_are_committed_or_else_the_best():
    now = predict(log_probs([[0.99, 0.01], [0.6, 0.4], [0.97, 0.03]]))
    decision = Credit(min_confidence=0.95).decide(observe(now))
    assert (committed(decision), bool(decision.forced)) == ("x.x", False)
    decision = Credit(min_confidence=0.95).decide(observe(now, active=".m."))
    assert (committed(decision), bool(decision.forced)) == (".x.", True)


def test_equally_good_positions_below_the_threshold_are_committed_together():
    now = predict(log_probs([[0.6, 0.4], [0.5, 0.5], [0.6, 0.4]]))
    decision = Credit().decide(observe(now))
    assert (committed(decision), bool(decision.forced)) == ("x.x", True)


def test_equal_fused_logits_go_to_the_lower_token():
    assert Credit().decide(observe(predict([[0.0, 1.0, 1.0]]))).tokens.tolist() == [[1]]
    carry = torch.tensor([[[[2.0, 5.0], [1.0, 5.0], [-1.0, 0.0]]]])
    decision = Credit(credits=3).decide(observe(predict([[0.1, 0.0, 0.0]]), carry=carry))
    assert decision.tokens.tolist() == [[1]]


def test_one_token_more_than_remembered_displaces_the_least_credit():
    decision = steps(Credit(credits=2, decay=0.9), *winning(0, 0, 0, 1, 2))[-1]
    assert sorted(decision.carry[0, 0, :, 0].tolist()) == [0, 2]


def test_without_weight_it_is_the_threshold_sampler():
    for seed in range(5):
        model = Toy(seed=seed)
        ours = run(model, Credit(weight=0.0), length=12)
        assert torch.equal(ours.tokens, run(model, Threshold(), length=12).tokens)


def test_an_extreme_weight_gives_numbers():
    for decision in steps(Credit(weight=1e6, decay=1.0), *winning(0, 1, 0)):
        assert math.isfinite(float(decision.signals["confidence"]))
        assert committed(decision) == "x"
