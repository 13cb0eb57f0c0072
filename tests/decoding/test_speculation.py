"""Speculation: the same tokens in the same steps, with fewer forwards of more rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings

from tests.conftest import GOLDENS
from tests.decoding.test_properties import EAGER, KINDS, Case, cases
from tests.raises import raises_field
from tests.toy import COUNTS, Toy, run
from unmask import (
    LESS,
    SAMPLERS,
    Base,
    BlockCache,
    Guided,
    Options,
    Speculative,
    Threshold,
    blank,
    decode,
    load,
    plan,
)
from unmask.types import Sampler

SAME = [count for count in COUNTS if count not in ("forwards", "rows")]
PLAIN = {name: SAMPLERS[name] for name in KINDS if SAMPLERS[name].needs.speculation is None}


@pytest.mark.parametrize("order", ["surest", "first"])
@pytest.mark.parametrize("name", sorted(PLAIN))
@settings(max_examples=3)
@given(case=cases())
def test_every_sampler_takes_the_same_steps(name: str, order: str, case: Case) -> None:
    assert_lossless(Speculative(PLAIN[name], guess=order), case)


@pytest.mark.parametrize("sampler", EAGER, ids=str)
@settings(max_examples=5)
@given(case=cases())
def test_rules_that_accept_often_take_the_same_steps(sampler: Sampler, case: Case) -> None:
    assert_lossless(Speculative(sampler, rows=6), case)


def assert_lossless(sampler: Speculative, case: Case) -> None:
    plain, ours = case.run(sampler.sampler), case.run(sampler)
    assert torch.equal(ours.tokens, plain.tokens)
    for count in SAME:
        assert torch.equal(getattr(ours, count), getattr(plain, count)), count
    assert (ours.forwards <= plain.forwards).all()
    assert (ours.rows >= ours.forwards).all()


@cache
def tiny(family: str):
    return load(GOLDENS / family, device="cpu", dtype="float32")


@pytest.mark.parametrize("cached", [None, "suffix", "block"])
@pytest.mark.parametrize("family", ["llada_tiny", "dream_tiny", "dream_calm_tiny"])
@pytest.mark.parametrize("sampler", [Base(), Threshold(), LESS()], ids=["base", "threshold", "less"])
def test_models_and_caches_give_the_same_ids_in_fewer_forwards(sampler, family, cached) -> None:
    model = tiny(family)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5, 4], [11]]
    canvas = blank(prompts, 16, mask_id=model.info.mask_id, pad_id=model.info.pad_id)

    def run_with(chosen: Sampler):
        kept = None if cached is None else BlockCache(cached)
        blocks = plan(canvas.start, 16, steps=16, block_length=8)
        return decode(model, canvas, chosen, blocks, Options(stop_at_eos=False), cache=kept)

    plain, ours = run_with(sampler), run_with(Speculative(sampler))
    assert torch.equal(ours.tokens, plain.tokens)
    assert (ours.forwards <= plain.forwards).all()
    if isinstance(sampler, Base):
        assert ours.forwards.sum() < plain.forwards.sum()


def test_a_model_that_never_changes_its_mind_needs_one_forward_in_four() -> None:
    steady = Toy(drift=0.0, lead=16.0, eos_ids=())
    fixed = replace(steady, seed=5)
    plain = run(fixed, Base(), length=24)
    ours = run(fixed, Speculative(Base(), rows=4), length=24)
    assert torch.equal(ours.tokens, plain.tokens)
    assert int(plain.forwards[0]) == 24
    assert int(ours.forwards[0]) < 24
    assert int(ours.rows[0]) == sum(steady_rows for steady_rows in fixed.calls[24:])


def test_a_decision_that_finishes_the_block_is_taken_whole_if_all_of_it_was_guessed() -> None:
    steady = Toy(drift=0.0, lead=16.0, eos_ids=())
    whole = run(steady, Speculative(Base(), partial=True), length=4, steps=2)  # two commits in each step
    assert whole.accepted.tolist() == [4]
    assert whole.leftovers.tolist() == [0]


def test_a_model_whose_rows_depend_on_each_other_is_refused() -> None:
    model = Toy()
    canvas = blank([[2, 3]], 4, mask_id=0, pad_id=0)
    with raises_field("sampler"):
        decode(Guided.on(model, canvas, 1.0), canvas, Speculative(Base()), plan(canvas.start, 4, steps=4))


@pytest.mark.parametrize(("field", "value"), [("rows", 1), ("rows", "4"), ("guess", "last"), ("partial", 1)])
def test_a_field_out_of_range_is_named(field: str, value: object) -> None:
    with raises_field(field):
        Speculative(Base(), **{field: value})
