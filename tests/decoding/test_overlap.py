"""Overlapping blocks: the next one opens before the last is full."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.test_properties import KINDS, Case, cases, named
from tests.raises import raises_field
from tests.toy import Toy, make_canvas
from unmask import SAMPLERS, Base, GenerationConfig, Options, RowNoise, Threshold, decode, denoise, plan


def steps_of(case: Case, sampler, at: float, rows: slice = slice(None)):
    canvas = make_canvas(case.model, case.prompts[rows], case.length, filled=case.filled[rows])
    blocks = plan(
        canvas.start,
        case.length,
        steps=2 * case.length,
        block_length=case.block_length or 1,
        next_block_at=at,
    )
    options = Options(stop_at_eos=case.stop_at_eos)
    noise = RowNoise(case.seeds[rows])
    return canvas, list(denoise(case.model, canvas, named(sampler), blocks, options, noise=noise))


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=3)
@given(case=cases(), at=st.sampled_from([0.1, 0.5, 1.0]))
def test_every_sampler_leaves_no_mask_and_a_batch_equals_singles(name: str, case: Case, at: float) -> None:
    if SAMPLERS[name].needs.min_length > case.length:
        return
    canvas, steps = steps_of(case, name, at)
    final = steps[-1].tokens if steps else canvas.tokens
    if not case.stop_at_eos:
        assert not (final[:, -case.length :] == case.model.mask_id).any()
    for row in range(len(case.prompts)):
        canvas, alone = steps_of(case, name, at, slice(row, row + 1))
        tokens = alone[-1].tokens if alone else canvas.tokens
        assert torch.equal(final[row, -case.length :], tokens[0, -case.length :])


@settings(max_examples=25)
@given(case=cases(max_rows=1), at=st.sampled_from([0.25, 0.5, 1.0]))
def test_a_block_opens_when_enough_of_the_one_before_is_filled(case: Case, at: float) -> None:
    size = case.block_length or 1
    canvas, steps = steps_of(case, Threshold(min_confidence=0.4), at)
    before = canvas.tokens[0, canvas.start :]
    opened = 1
    for step in steps:
        masks = [
            int((before[first : first + size] == case.model.mask_id).sum())
            for first in range(0, case.length, size)
        ]
        opened = max(opened, 1 + next(number for number, left in enumerate(masks) if left))
        committed = step.decision.commit[0].nonzero()[:, 0].tolist()
        assert all(column // size < opened for column in committed)
        assert any(column // size == next(n for n, left in enumerate(masks) if left) for column in committed)
        before = step.tokens[0, canvas.start :]
        last = before[(opened - 1) * size : opened * size]
        filled = 1 - float((last == case.model.mask_id).sum()) / len(last)
        opened = min(opened + (filled >= at), len(masks))


def test_blocks_that_wait_for_each_other_give_the_same_tokens_as_blocks_in_order() -> None:
    model = Toy(eos_ids=())
    canvas = make_canvas(model, [(2, 3), (4, 5, 6)], 12)
    sampler = Threshold(min_confidence=0.5)
    apart = decode(model, canvas, sampler, plan(canvas.start, 12, steps=12, block_length=4))
    waiting = plan(canvas.start, 12, steps=12, block_length=4, next_block_at=1.0)
    assert torch.equal(decode(model, canvas, sampler, waiting).tokens, apart.tokens)


@pytest.mark.parametrize("value", [-0.1, 1.5, "half"])
def test_a_share_out_of_range_is_refused(value: object) -> None:
    with raises_field("next_block_at"):
        plan(2, 8, steps=8, block_length=4, next_block_at=value)


def test_overlap_needs_blocks_and_no_cache() -> None:
    with raises_field("next_block_at"):
        plan(2, 8, steps=8, next_block_at=0.5)
    with raises_field("next_block_at"):
        GenerationConfig(next_block_at=0.5, cache="dual")


def test_base_keeps_its_budget() -> None:
    model = Toy(eos_ids=())
    canvas = make_canvas(model, None, 12)
    result = decode(model, canvas, Base(), plan(canvas.start, 12, steps=6, block_length=4, next_block_at=0.5))
    assert int(result.steps[0]) <= 6
    assert not (result.tokens == model.mask_id).any()
