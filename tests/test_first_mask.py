"""First mask: each of its rules on Observations made by hand, and whole runs on random models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_samplers import forced, sure
from tests.toy import Scripted, Toy, committed, drawing, log_probs, observe, predict, run, trail
from unmask import SAMPLERS, FirstMask, make_sampler
from unmask.types import Needs, Observation

END = 3  # `sure` gives token 0 the confidence unless told otherwise
ALWAYS = FirstMask(along="confidence", along_confidence=0)
models = st.builds(
    Toy,
    seed=st.integers(0, 999),
    vocab_size=st.sampled_from([12, 3]),
    drift=st.sampled_from([0.3, 3.0, 9.0]),
    lead=st.sampled_from([4.0, 16.0]),
)


def look(*confidences: float, ends: str = "", active: str | None = None, **more) -> Observation:
    """An Observation whose column j has the j-th confidence; "e" in `ends` marks columns of an end token."""
    winners = [END if letter == "e" else 0 for letter in ends.ljust(len(confidences), ".")]
    return observe(sure(*confidences, winners=winners), active=active, eos_ids=(END,), **more)


def shown(decision, name: str) -> str:
    return drawing(decision.signals[name])


# confident positions, the first mask, end tokens


def test_every_confident_position_commits_wherever_it_stands():
    decision = FirstMask().decide(look(0.5, 0.99, 0.5, 0.99))
    assert (committed(decision), forced(decision)) == (".x.x", False)
    assert drawing(decision.eligible) == ".x.x"
    assert committed(FirstMask(min_confidence=0.5).decide(look(0.6, 0.4, 0.7))) == "x.x"
    half = observe(predict([[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]]))
    assert not forced(FirstMask(min_confidence=0.5).decide(half)), "equality is enough"


def test_without_a_confident_position_the_first_mask_commits():
    decision = FirstMask().decide(look(0.9, 0.3, 0.9, 0.95, active=".mmm"))
    assert (committed(decision), forced(decision)) == (".x..", True)
    assert drawing(decision.eligible) == "...."


@pytest.mark.parametrize("ends", ["..ee", ".e..", "...e", "eeee"])
def test_an_end_token_commits_with_all_to_its_left(ends):
    decision = FirstMask().decide(look(0.99, 0.99, 0.99, 0.99, ends=ends))
    assert (committed(decision), shown(decision, "end_waits")) == ("xxxx", "....")


def test_an_end_token_waits_for_the_masks_to_its_left_and_says_so():
    decision = FirstMask().decide(look(0.99, 0.5, 0.99, 0.99, 0.99, ends="..e.e"))
    assert committed(decision) == "x..x."
    assert shown(decision, "end_waits") == "..x.x"


def test_the_end_rule_counts_only_masks_of_the_block():
    decision = FirstMask().decide(look(0.5, 0.99, 0.99, ends="..e", active=".mm"))
    assert committed(decision) == ".xx"


def test_end_tokens_alone_are_not_enough_and_the_first_mask_is_forced():
    decision = FirstMask().decide(look(0.4, 0.99, 0.99, ends=".ee"))
    assert (committed(decision), forced(decision)) == ("x..", True)


def test_the_first_mask_may_be_an_end_token():
    assert committed(FirstMask().decide(look(0.4, 0.5, ends="e."))) == "x."
    assert committed(FirstMask().decide(look(0.99, 0.5, ends="e."))) == "x."


def test_an_end_token_is_one_that_would_be_written():
    drawn = torch.tensor([[0, END, 0]])
    assert committed(FirstMask().decide(look(0.5, 0.99, 0.5, drawn=drawn))) == "x.."
    drawn = torch.tensor([[0, 0, 0]])
    assert committed(FirstMask().decide(look(0.5, 0.99, 0.5, ends=".e.", drawn=drawn))) == ".x."


def test_the_fallback_takes_the_most_confident_of_the_window():
    obs = look(0.3, 0.2, 0.5, 0.4, 0.6, active="m.mmm")
    for window, expected in ((1, "x...."), (2, "..x.."), (3, "..x.."), (4, "....x")):
        assert committed(FirstMask(window=window).decide(obs)) == expected


def test_the_fallback_takes_an_end_token_only_at_the_first_mask():
    assert committed(FirstMask(window=2).decide(look(0.3, 0.9, 0.5, ends=".e."))) == "x.."
    assert committed(FirstMask(window=2).decide(look(0.9, 0.5, 0.5, ends="e.."))) == "x.."
    assert committed(FirstMask(window=3).decide(look(0.3, 0.9, 0.5, ends=".e."))) == "..x"


# the first mask goes along


def test_the_first_mask_goes_along_with_confident_ones_from_a_confidence_on():
    sampler = FirstMask(along="confidence", along_confidence=0.7)
    assert committed(sampler.decide(look(0.8, 0.6, 0.99))) == "x.x"
    assert committed(sampler.decide(look(0.6, 0.8, 0.99))) == "..x"
    assert committed(ALWAYS.decide(look(0.26, 0.8, 0.99))) == "x.x"


def test_a_first_mask_that_goes_along_counts_as_accepted():
    decision = ALWAYS.decide(look(0.3, 0.8, 0.99))
    assert (drawing(decision.eligible), forced(decision)) == ("x.x", False)


def test_nothing_goes_along_with_a_forced_commit():
    decision = replace(ALWAYS, window=2).decide(look(0.5, 0.6, 0.4))
    assert (committed(decision), forced(decision)) == (".x.", True)


def test_the_first_mask_goes_along_if_it_has_not_moved():
    now, moved = sure(0.5, 0.5, 0.99), sure(0.6, 0.5, 0.99)
    sampler = FirstMask(along="jsd")
    still = sampler.decide(observe(now, now))
    assert committed(still) == "x.x"
    assert still.signals["jsd"].tolist() == [[0.0] * 3]
    assert committed(sampler.decide(observe(now, moved))) == "..x"
    assert committed(replace(sampler, along_jsd=0.1).decide(observe(now, moved))) == "x.x"
    assert committed(sampler.decide(observe(now))) == "..x", "nothing to compare with"


def test_an_end_token_may_go_along_but_not_let_others_follow_it():
    decision = ALWAYS.decide(look(0.5, 0.5, 0.99, ends="e.."))
    assert committed(decision) == "x.x"
    # the end rule asks for confident positions to the left, not for one that goes along
    assert committed(ALWAYS.decide(look(0.5, 0.99, 0.99, ends="..e"))) == "xx."


# a token is revoked


def revocable(probability: float, *, written: str = "w.", carry: torch.Tensor | None = None) -> Observation:
    """Column 0 holds token 1, which now has this probability; column 1 is a mask."""
    now = predict(log_probs([[1 - probability, probability, 0.0], [0.4, 0.3, 0.3]]))
    return replace(
        observe(now, active=".m", carry=carry),
        tokens=torch.tensor([[1, 2]]),
        written=torch.tensor([[letter == "w" for letter in written]]),
    )


REVOKE = FirstMask(revoke_below=0.1)


def test_a_written_token_that_lost_its_probability_is_revoked():
    decision = REVOKE.decide(revocable(0.09))
    assert (drawing(decision.revoke), committed(decision)) == ("x.", ".x")
    assert decision.signals["probability"].tolist() == [[pytest.approx(0.09), pytest.approx(0.4)]]
    assert drawing(REVOKE.decide(revocable(0.11)).revoke) == ".."


def test_a_token_of_the_prompt_or_of_another_block_is_not_revoked():
    assert drawing(REVOKE.decide(revocable(0.0, written="..")).revoke) == ".."


def test_a_position_is_revoked_once():
    first = REVOKE.decide(revocable(0.0))
    second = REVOKE.decide(revocable(0.0, carry=first.carry))
    assert (drawing(first.revoke), drawing(second.revoke)) == ("x.", "..")
    assert drawing(REVOKE.decide(revocable(0.5)).carry) == ".."
    assert drawing(second.carry) == "x."


def test_a_new_block_may_be_revoked_again():
    model = Toy(seed=3, drift=9.0, eos_ids=())
    _, steps = trail(model, FirstMask(revoke_below=0.9), length=8, block_length=4, steps=32)
    assert {step.block for step in steps if step.decision.revoke.any()} == {0, 1}


# what it asks for, whole runs


def test_it_asks_the_loop_for_no_more_than_it_uses():
    for sampler in (FirstMask(), FirstMask(window=2), ALWAYS):
        assert sampler.needs == Needs(ends_last=True)
    assert FirstMask(along="jsd").needs == Needs(top_k=8, lookback=1, gather_logits=True, ends_last=True)
    assert FirstMask(revoke_below=0.1).needs == Needs(revoke=True, carry=1, ends_last=True)
    both = FirstMask(along="jsd", revoke_below=0.1).needs
    assert (both.logits, both.revoke) == (True, True)


def test_the_presets_are_the_measured_settings():
    assert SAMPLERS["first-mask"] == FirstMask(min_confidence=0.98, window=1)
    assert SAMPLERS["first-mask-accurate"].window == 2
    assert SAMPLERS["first-mask-along"] == make_sampler("first-mask", along="jsd", along_jsd=0.001)
    assert SAMPLERS["first-mask-always"] == ALWAYS
    assert SAMPLERS["first-mask-revoke"] == replace(ALWAYS, revoke_below=0.1)


def test_a_first_mask_that_goes_along_saves_a_forward():
    unsure, word, end = [0.0, 0.5, 0.4, 0.3], [0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 0.0, 9.0]
    model = Scripted([unsure, word, word, end, end, end], eos_ids=(END,))
    result = run(model, FirstMask(), length=6)
    assert result.generated[0].tolist() == [1, 1, 1, 3, 3, 3]
    assert (int(result.forwards), result.finish) == (3, ("eos",))
    always = run(model, ALWAYS, length=6)
    assert int(always.forwards) == 2
    assert torch.equal(always.tokens, result.tokens)


@settings(max_examples=60)
@given(
    model=models,
    length=st.integers(1, 12),
    block=st.none() | st.integers(1, 12),
    window=st.integers(1, 3),
    along=st.sampled_from([None, "confidence", "jsd"]),
)
def test_no_end_token_is_committed_ahead_of_a_mask(model, length, block, window, along):
    block = None if block is None else min(block, length)
    sampler = FirstMask(min_confidence=0.5, window=window, along=along, along_jsd=0.1)
    canvas, steps = trail(model, sampler, length=length, block_length=block, stop_at_eos=False)
    for step in steps:
        generated = step.tokens[0, canvas.start : step.window.stop].tolist()
        assert step.decision.commit.any()
        if model.mask_id in generated:
            behind = generated[generated.index(model.mask_id) :]
            assert not set(model.eos_ids) & set(behind)


@settings(max_examples=100)
@given(
    model=models,
    length=st.integers(1, 12),
    block=st.none() | st.integers(1, 12),
    revoke_below=st.sampled_from([0.1, 0.5, 1.0]),
    window=st.integers(1, 3),
    along=st.sampled_from([None, "confidence", "jsd"]),
    stop_at_eos=st.booleans(),
)
def test_a_run_that_revokes_ends_by_itself_within_two_steps_a_token(
    model, length, block, revoke_below, window, along, stop_at_eos
):
    sampler = FirstMask(
        min_confidence=0.6, window=window, along=along, along_jsd=0.1, revoke_below=revoke_below
    )
    block = None if block is None else min(block, length)
    options = {"length": length, "block_length": block, "steps": 4 * length, "stop_at_eos": stop_at_eos}
    canvas, steps = trail(model, sampler, **options)
    revoked = torch.zeros_like(canvas.tokens)
    for step in steps:
        assert step.decision.commit.any(), "every step commits"
        assert not step.leftover
        revoked[:, step.window] += step.decision.revoke
    assert len(steps) <= 2 * length
    assert int(revoked.max()) <= 1
    assert not (run(model, sampler, **options).generated == model.mask_id).any()


def test_runs_on_random_models_do_revoke():
    results = [run(Toy(seed=seed, drift=9.0), SAMPLERS["first-mask-revoke"], length=12) for seed in range(9)]
    assert sum(int(result.revoked) for result in results) > 0
