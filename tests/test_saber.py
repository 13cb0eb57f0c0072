"""Saber: its moving threshold, and which positions return to the mask."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy import Toy, committed, drawing, log_probs, mask, observe, predict, run, trail
from unmask import Saber
from unmask.types import Decision, Prediction


def sure(*confidences: float) -> Prediction:
    return predict(log_probs([[top, 1 - top - (1 - top) / 2.5, (1 - top) / 2.5] for top in confidences]))


def decide(
    now: Prediction, *past: Prediction, active: str, carry: list[float] | None = None, number: int = 2
) -> Decision:
    """Decide on one row; "m" is masked, "w" was written by the run, "." was there before."""
    held = None if carry is None else torch.tensor([carry])
    obs = replace(observe(now, *past, active=active, carry=held), written=mask(active, "w"))
    return Saber(number=number).decide(obs)


def test_before_any_commit_the_most_confident_are_committed():
    decision = decide(sure(0.5, 0.9, 0.7, 0.6), active="mmmm")
    assert drawing(decision.eligible) == "...."
    assert bool(decision.forced)
    assert decision.signals["threshold"].tolist() == [[1.0] * 4]


def test_the_threshold_is_the_mean_of_what_commits_had_even_if_they_were_taken_back():
    now = sure(0.75, 0.65, 0.8, 0.9)
    decision = decide(now, now, active="mmmm", carry=[0.6, -1, -1, 0.8])
    assert float(decision.signals["threshold"][0, 0]) == pytest.approx(0.7)
    assert drawing(decision.eligible) == "x.xx"
    assert not bool(decision.forced)


def test_a_confidence_equal_to_the_mean_of_equal_ones_does_not_pass():
    now = sure(0.7, 0.7, 0.7, 0.7)
    top = float(decide(now, active="mmmm").signals["confidence"][0, 0])
    assert drawing(decide(now, now, active="wwwm", carry=[top, top, top, -1]).eligible) == "...."


def test_the_position_that_gained_least_returns_to_the_mask():
    now, before = sure(0.9, 0.8, 0.9, 0.9, 0.3), sure(0.8, 0.9, 0.4, 0.4, 0.3)
    decision = decide(now, before, active="wwmmm", carry=[0.8, 0.8, -1, -1, -1])
    assert committed(decision) == "..xx."
    assert drawing(decision.revoke) == ".x..."


def test_what_was_there_before_never_returns():
    now, before = sure(0.9, 0.8, 0.9, 0.9, 0.3), sure(0.8, 0.9, 0.4, 0.4, 0.3)
    decision = decide(now, before, active="w.mmm", carry=[0.8, -1, -1, -1, -1])
    assert drawing(decision.revoke) == "x...."


def test_a_commit_that_returns_at_once_is_not_made_but_remembered():
    now, before = sure(0.9, 0.85, 0.9, 0.3), sure(0.2, 0.85, 0.2, 0.3)
    decision = decide(now, before, active="wmmm", carry=[0.8, -1, -1, -1])
    assert committed(decision) == "..x."
    assert not decision.revoke.any()
    assert decision.carry[0].tolist() == pytest.approx([0.8, 0.85, 0.9, -1], abs=1e-6)


def test_in_the_first_step_the_least_confident_commit_returns():
    decision = decide(sure(0.5, 0.9, 0.7, 0.6), active="mmmm")
    assert committed(decision) == ".x.."
    assert decision.carry[0].tolist() == pytest.approx([-1, 0.9, 0.7, -1], abs=1e-6)


@pytest.mark.parametrize(
    ("number", "chosen", "returns"),
    [(1, 1, 0), (1, 2, 1), (2, 2, 1), (2, 9, 2), (2, 16, 2), (2, 17, 3), (4, 5, 2)],
)
def test_an_eighth_of_the_commits_but_half_of_the_number_return(number, chosen, returns):
    now = sure(*[0.9] * chosen, 0.4)
    carry = [-1.0] * (chosen + 1)
    carry[-1] = 0.5  # was committed and taken back
    decision = decide(now, now, active="m" * (chosen + 1), carry=carry, number=number)
    assert drawing(decision.eligible) == "x" * chosen + "."
    assert int(decision.commit.sum()) == chosen - returns


def test_nothing_returns_once_no_mask_is_left():
    now, before = sure(0.2, 0.9, 0.9), sure(0.9, 0.9, 0.9)
    decision = decide(now, before, active="wmm", carry=[0.9, -1, -1])
    assert (committed(decision), drawing(decision.revoke)) == (".xx", "...")


def test_with_fewer_masks_than_its_number_it_writes_only_them():
    now = sure(0.9, 0.9, 0.2, 0.9)
    decision = decide(now, now, active="wwmw", carry=[0.9, 0.9, -1, 0.9], number=4)
    assert (committed(decision), drawing(decision.revoke)) == ("..x.", "....")


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99),
    number=st.integers(1, 9),
    length=st.integers(1, 16),
    block=st.none() | st.integers(1, 16),
    quantum=st.sampled_from([0.0, 1.0]),
)
def test_every_step_makes_progress_inside_its_block_so_runs_end(seed, number, length, block, quantum):
    model = Toy(seed=seed, eos_ids=(), quantum=quantum, drift=3.0)
    block = None if block is None else min(block, length)
    canvas, steps = trail(model, Saber(number=number), length=length, block_length=block)
    before = canvas.tokens
    for step in steps:
        masks = int((before == model.mask_id).sum()) - int((step.tokens == model.mask_id).sum())
        assert masks >= 1
        changed = (step.tokens != before).nonzero()[:, 1]
        assert all(step.revocable.start <= column < step.revocable.stop for column in changed.tolist())
        before = step.tokens
    result = run(model, Saber(number=number), length=length, block_length=block)
    assert int(result.leftovers) == 0
    assert not (result.generated == model.mask_id).any()


def test_it_takes_tokens_back_in_practice():
    revoked = [int(run(Toy(seed=seed, eos_ids=()), Saber(), length=16).revoked) for seed in range(5)]
    assert sum(revoked) > 0
