"""Overlapping blocks: the next one opens before the last is full."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.test_blocks import FAMILIES, prompts
from tests.decoding.test_blocks import model as grid_model
from tests.decoding.test_properties import KINDS, Case, cases, named
from tests.raises import raises_field
from tests.toy import Toy, make_canvas
from unmask import (
    SAMPLERS,
    WINO,
    Base,
    Dawn,
    GenerationConfig,
    Options,
    RowNoise,
    Threshold,
    decode,
    denoise,
    make_sampler,
    plan,
)
from unmask.text.generate import prepare
from unmask.types import Decision, Needs, Observation


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


@dataclass(frozen=True)
class Slow:
    """Commits nothing in odd steps, so that the last step of a budget may change nothing."""

    needs = Needs()

    def decide(self, obs: Observation) -> Decision:
        commit = obs.active & (obs.active.cumsum(-1) == 1) & (obs.step % 2 == 0)[:, None]
        return Decision(commit, obs.active, torch.zeros_like(obs.active[:, 0]))


@dataclass(frozen=True)
class Lingering:
    """Commits the first half of the masks, and goes on when there is none, until its budget is spent."""

    needs = Needs(revoke=True)

    def decide(self, obs: Observation) -> Decision:
        commit = obs.active & (obs.active.cumsum(-1) <= 3)
        always = torch.ones_like(obs.active[:, 0])
        return Decision(commit, obs.active, ~always, revoke=torch.zeros_like(commit), open=always)


def answers(family, rows, sampler, config, schedule=None):
    """The answers of a batch under a fixed schedule, by default the model's."""
    batch = prepare(grid_model(family), rows, sampler, config)
    options = replace(batch.run.options, schedule=schedule)
    batch = replace(batch, run=replace(batch.run, options=options))
    return batch.read(batch.steps, since=0.0)


@pytest.mark.parametrize("name", [*KINDS, "slow", "lingering"])
@settings(max_examples=4)
@given(
    family=st.sampled_from(FAMILIES),
    schedule=st.sampled_from([None, "linear", "dream", "remaining"]),
    at=st.sampled_from([0.0, 0.3, 0.8]),
    steps=st.sampled_from([None, 5, 9, 13]),
    temperature=st.sampled_from([0.0, 0.8]),
    stop_at_eos=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_row_has_its_own_budget_in_a_batch_with_more_blocks(name, family, schedule, at, seed, **settings):
    sampler = {"slow": Slow(), "lingering": Lingering()}.get(name) or make_sampler(name)
    rows = [[1] * 8, *prompts(seed, 3)]  # the first has fewer blocks than a prompt that ends inside one
    config = GenerationConfig(max_new_tokens=14, next_block_at=at, seed=seed, **settings)
    batch = answers(family, rows, sampler, config, schedule)
    assert [answers(family, [row], sampler, config, schedule)[0] for row in rows] == batch


@pytest.mark.parametrize("family", FAMILIES)
def test_no_shadow_and_no_attention_map_depends_on_the_padding_behind_a_row(family):
    """Where column i predicts column i + 1, a row also saw the shadow of the first padding column."""
    seen = []

    class Watching(WINO):
        def decide(self, obs):
            seen.append(obs.shadow.top_logits)
            return super().decide(obs)

    class Mapping(Dawn):
        def decide(self, obs):
            weights, real = obs.attention.weights, obs.attention.real
            seen.append(weights.masked_fill(~real[..., None], 0).sum(1) / real.sum(-1, keepdim=True))
            return super().decide(obs)

    rows = [[1] * 8, [2, 3, 4, 5, 6]]
    config = GenerationConfig(max_new_tokens=16, next_block_at=0.3, stop_at_eos=False)
    for sampler in (Watching(), Mapping()):
        shown = []
        for batch in (rows, rows[:1]):
            seen.clear()
            list(prepare(grid_model(family), batch, sampler, config).steps)
            shown.append(list(seen))
        for together, alone in zip(*shown, strict=False):
            torch.testing.assert_close(together[:1, : alone.shape[1]], alone, rtol=1e-4, atol=1e-4)
