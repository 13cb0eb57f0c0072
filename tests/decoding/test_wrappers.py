"""EndLast and Spaced around every sampler."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import example, given, settings

from tests.decoding.test_properties import (
    EAGER,
    KINDS,
    Case,
    assert_batch_equals_singles,
    cases,
    every_sampler,
    named,
)
from tests.raises import raises_field
from tests.test_samplers import sure
from tests.toy import Toy, committed, drawing, observe
from unmask import KLASS, LESS, SAMPLERS, Base, EndLast, Prophet, Selection, Spaced, Threshold
from unmask.samplers.wrapper import inner, kind
from unmask.types import Decision, Needs, Observation

END = 1
WRAPPERS = {
    "end last": EndLast,
    "spaced": lambda sampler: sampler if ends_last(sampler) else Spaced(sampler),
    "three apart": lambda sampler: sampler if ends_last(sampler) else Spaced(sampler, gap=3),
    "both": lambda sampler: sampler if ends_last(sampler) else EndLast(Spaced(sampler, gap=2)),
}
every_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS)


def ends_last(sampler) -> bool:
    return isinstance(sampler, EndLast)


@every_wrapper
@every_sampler
@settings(max_examples=2)
@given(case=cases())
def test_every_wrapped_sampler_ends_leaves_no_mask_and_keeps_the_given_tokens(wrapper, name, case):
    sampler = WRAPPERS[wrapper](SAMPLERS[name])
    canvas, steps = case.trail(sampler)
    assert all(step.index <= case.steps for step in steps)
    after = case.counted(steps).tokens
    assert not (after[:, canvas.start :] == case.model.mask_id).any()
    kept = canvas.tokens != case.model.mask_id
    assert torch.equal(after[kept], canvas.tokens[kept])


@pytest.mark.slow
@every_wrapper
@every_sampler
@settings(max_examples=2)
@given(case=cases(max_rows=3))
def test_a_batch_of_n_equals_n_singles(wrapper, name, case):
    assert_batch_equals_singles(WRAPPERS[wrapper](SAMPLERS[name]), case)


def every_value(test):
    """Run a test with every preset, and with values that make every branch of a rule happen."""
    return pytest.mark.parametrize("sampler", [*KINDS, *EAGER], ids=str)(test)


@every_value
@settings(max_examples=3)
@given(case=cases())
@example(
    case=Case(  # part of a decision would be a guess that writes an end token early
        model=Toy(vocab_size=12, seed=776, mask_id=11, eos_ids=(0,), lead=16.0, drift=0.0, holes=True),
        prompts=((8,), (7, 6, 4, 7, 5)),
        filled=({}, {}),
        length=12,
        steps=7,
        block_length=None,
        stop_at_eos=False,
        selection=Selection(),
        seeds=(0, 1),
    )
)
def test_no_end_token_is_written_while_a_mask_to_its_left_stays(sampler, case):
    canvas, steps = case.trail(EndLast(named(sampler)))
    before = canvas.tokens[:, canvas.start :]
    for step in steps:
        after = step.tokens[:, canvas.start :]
        behind = (after == case.model.mask_id).cumsum(-1) > 0
        ends = torch.isin(after, torch.tensor(case.model.eos_ids, dtype=torch.long))
        assert not ((after != before) & ends & behind).any()
        before = after


@every_value
@settings(max_examples=2)
@given(case=cases())
def test_no_two_commits_of_a_step_are_closer_than_the_gap(sampler, case):
    if ends_last(named(sampler)):
        return
    for gap in (2, 4):
        _, steps = case.trail(Spaced(named(sampler), gap=gap))
        for step in (step for step in steps if not step.leftover):
            for row in step.decision.commit:
                assert (row.nonzero().flatten().diff() >= gap).all()


@every_sampler
@settings(max_examples=3)
@given(case=cases())
def test_without_end_tokens_the_end_rule_changes_nothing(name, case):
    model = replace(case.model, eos_ids=())
    case = replace(case, model=model)
    assert torch.equal(case.run(EndLast(SAMPLERS[name])).tokens, case.run(name).tokens)


# single decisions


def ending(*confidences: float, ends: str, **settings) -> Observation:
    """An Observation whose columns marked "e" predict an end token, the others a word."""
    winners = [END if letter == "e" else 2 for letter in ends]
    return observe(sure(*confidences, winners=winners), eos_ids=(END,), **settings)


@pytest.mark.parametrize(
    ("confidences", "ends", "expected", "waits"),
    [
        ((0.95, 0.95, 0.95), "wwe", "xxx", "..."),  # everything before it goes in the same step
        ((0.95, 0.5, 0.95), "wwe", "x..", "..x"),
        ((0.4, 0.5, 0.95), "wwe", ".x.", "..x"),  # the fallback chooses among the others
        ((0.95, 0.95, 0.95), "eee", "xxx", "..."),
        ((0.95, 0.5, 0.95), "eee", "x..", "..x"),
        ((0.5, 0.6, 0.95), "eew", "..x", "..."),
        ((0.5, 0.6, 0.7), "eee", "x..", "..."),  # the first mask has nothing before it
    ],
)
def test_an_end_token_waits_for_the_masks_before_it(confidences, ends, expected, waits):
    decision = EndLast(Threshold()).decide(ending(*confidences, ends=ends))
    assert committed(decision) == expected
    assert drawing(decision.signals["end_waits"]) == waits
    assert not (decision.eligible & decision.signals["end_waits"]).any()


def test_the_schedule_spends_its_quota_on_other_tokens():
    obs = ending(0.3, 0.4, 0.2, 0.9, 0.8, ends="wwwee", quota=2)
    assert committed(EndLast(Base()).decide(obs)) == "xx..."


def test_the_tokens_that_a_sampler_writes_decide_not_those_drawn():
    now = sure(0.5, 0.4, 0.95, winners=[2, 2, END])
    obs = observe(now, now, drawn=torch.tensor([[2, END, 2]]), eos_ids=(END,), step=3)
    sampler = KLASS(max_kl=1, history=1)
    assert committed(sampler.decide(obs)) == "..x"
    assert committed(EndLast(sampler).decide(obs)) == "x.."


@dataclass(frozen=True)
class Restless:
    """Writes an end token everywhere, but only when asked for the second time: with fewer positions."""

    needs = Needs()

    def decide(self, obs: Observation) -> Decision:
        last = obs.active & (obs.active.cumsum(-1) == obs.active.sum(-1, keepdim=True))
        tokens = torch.where(obs.active.all(), obs.drawn, END)
        return Decision(last, last, torch.zeros_like(obs.seen, dtype=torch.bool), tokens=tokens)


def test_a_row_makes_progress_though_all_its_commits_are_end_tokens():
    obs = ending(0.5, 0.6, 0.7, ends="wwe")
    decision = EndLast(Restless()).decide(obs)
    assert committed(decision) == "x.."
    assert decision.forced.all()


@pytest.mark.parametrize(
    ("gap", "active", "expected"),
    [
        (1, "mmmmmmmm", "xxxxxxxx"),
        (3, "mmmmmmmm", ".x..x..x"),
        (None, "mmmmmmmm", "....x..."),  # all masked: 8
        (None, "m..mmm..", "x...x..."),  # half masked: 4
        (None, "m.....m.", "x.....x."),  # never below 2
    ],
)
def test_commits_keep_their_distance_best_first(gap, active, expected):
    now = sure(0.95, 0.96, 0.91, 0.95, 0.99, 0.95, 0.92, 0.93)
    decision = Spaced(Threshold(), gap=gap).decide(observe(now, active=active))
    assert committed(decision) == expected
    held = drawing(decision.signals["too_close"])
    assert all(
        (mark == "x") == (take == "m" and kept == ".")
        for mark, take, kept in zip(held, active, expected, strict=True)
    )


def test_a_filter_outside_the_end_rule_is_refused():
    with raises_field("sampler", EndLast(LESS()), "EndLast(Spaced(sampler))"):
        Spaced(EndLast(LESS()))
    with raises_field("sampler", "less"):
        EndLast("less")
    with raises_field("gap", 0):
        Spaced(LESS(), gap=0)


@pytest.mark.parametrize(
    "sampler",
    [EndLast(LESS(min_confidence=0.2)), Spaced(Threshold(min_confidence=0.2)), EndLast(Spaced(KLASS()))],
)
def test_a_compiled_decision_is_the_same(sampler):
    """One graph, without a look at a value."""
    now = sure(0.3, 0.9, 0.8, 0.95, 0.99, 0.6, winners=[2, 2, END, 2, END, END])
    obs = observe(now, now, quota=2, eos_ids=(END,))
    plain = sampler.decide(obs)
    fast = torch.compile(sampler.decide, fullgraph=True, backend="aot_eager")(obs)
    assert torch.equal(plain.commit, fast.commit)
    assert torch.equal(plain.forced, fast.forced)
    for name, values in plain.signals.items():
        assert torch.allclose(values.float(), fast.signals[name].float(), atol=1e-5), name


def test_wrapped_samplers_name_their_parts():
    assert kind(EndLast(Spaced(LESS()))) == "EndLast(Spaced(LESS))"
    assert inner(EndLast(Spaced(LESS()))) == LESS()
    assert EndLast(Prophet()).needs == replace(Prophet().needs, ends_last=True)
