"""Blocks, budgets and the fixed schedules."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask import plan
from unmask.decoding.plan import DIAL, Block, Clock, Plan, clock, dream_rates, hands


def told(schedule: str, step: int, steps: int, left: list[int], started: list[int]) -> Clock:
    """What the clock says in one step of a single block."""
    block = Block(slice(0, 1), steps, 0)
    hand = hands(block, Plan((block,), steps, blockwise=False), schedule, step)[:1]
    return clock(hand, schedule, torch.tensor(left), torch.tensor(started))


def committed(schedule: str, length: int, steps: int) -> list[int]:
    """What a sampler that follows the schedule commits at every step."""
    left, done = length, []
    for step in range(steps):
        done.append(min(int(told(schedule, step, steps, [left], [length]).quota), left))
        left = left - done[-1]
    return done


@pytest.mark.parametrize("length", [64, 128, 256, 512])
def test_dream_commits_nothing_first_then_one_each_and_two_at_the_last_step(length):
    assert committed("dream", length, length) == [0] + [1] * (length - 2) + [2]


@pytest.mark.parametrize(("steps", "first", "each", "last"), [(128, 1, 2, 3), (64, 3, 4, 5)])
def test_dream_with_fewer_steps_starts_one_short_and_ends_one_over(steps, first, each, last):
    assert committed("dream", 256, steps) == [first] + [each] * (steps - 2) + [last]


def test_dream_with_twice_the_steps_idles_in_half_of_them():
    assert Counter(committed("dream", 256, 512))[0] == 257


@settings(max_examples=100)
@given(length=st.integers(1, 80), steps=st.integers(1, 120), schedule=st.sampled_from(["linear", "dream"]))
def test_every_schedule_commits_all_masks_within_its_budget(length, steps, schedule):
    assert sum(committed(schedule, length, steps)) == length


def test_the_dream_rate_is_one_at_the_last_step_and_one_minus_s_over_t_before():
    assert dream_rates(1).tolist() == [1.0]
    times = [1 - (1 - 1e-3) * i / 4 for i in range(5)]
    assert dream_rates(4).tolist() == pytest.approx(
        [*(1 - times[i + 1] / times[i] for i in range(3)), 1.0], rel=1e-5
    )


@pytest.mark.parametrize("schedule", ["linear", "dream"])
def test_a_long_block_is_told_in_parts(schedule):
    block = plan(0, 8, steps=DIAL + 10, block_length=4).blocks[1]
    whole = Plan((block,), DIAL + 10, blockwise=True)
    for first in (0, 1, block.budget - 1):
        [hand] = hands(block, whole, schedule, first)[:1]
        assert hand[:3].tolist() == [first, block.budget, (block.first_step + first + 1) / (DIAL + 10)]
    long = Block(slice(0, 4), 2 * DIAL + 3, 0)
    parts = [hands(long, Plan((long,), long.budget, blockwise=False), schedule, DIAL * i) for i in range(3)]
    assert [len(part) for part in parts] == [DIAL, DIAL, 3]
    assert torch.cat(parts)[:, 0].tolist() == list(range(long.budget))


def test_a_budget_beyond_counting_needs_no_table_of_its_size():
    block = Block(slice(0, 4), 10**12, 0)
    hand = hands(block, Plan((block,), 10**12, blockwise=False), "linear", 10**12 - 2)
    assert clock(hand[1:], "linear", torch.tensor([3]), torch.tensor([4])).step.tolist() == [10**12 - 1]


def test_linear_gives_the_remainder_to_the_first_steps():
    started = [10, 4, 0]
    quotas = [told("linear", step, 4, started, started).quota.tolist() for step in range(4)]
    assert quotas == [[3, 1, 0], [3, 1, 0], [2, 1, 0], [2, 1, 0]]


def test_linear_with_more_steps_than_masks_commits_one_each_and_then_none():
    assert committed("linear", 3, 5) == [1, 1, 1, 0, 0]


def test_rate_is_the_share_of_the_masks_that_are_left():
    quota, rate, *_ = told("linear", 0, 4, [8, 0], [8, 0])
    assert (quota.tolist(), rate.tolist()) == ([2, 0], [0.25, 0.0])
    quota, rate, *_ = told("dream", 3, 4, [8], [8])
    assert (quota.tolist(), rate.tolist()) == ([8], [1.0])


def test_without_block_length_the_whole_generation_is_one_block():
    made = plan(3, 8, steps=5)
    assert [(block.columns, block.budget, block.first_step) for block in made.blocks] == [
        (slice(3, 11), 5, 0)
    ]
    assert (made.blockwise, made.columns, made.steps) == (False, slice(3, 11), 5)


def test_blocks_share_the_steps_evenly_where_they_can():
    made = plan(2, 8, steps=8, block_length=4)
    assert [(block.columns, block.budget, block.first_step) for block in made.blocks] == [
        (slice(2, 6), 4, 0),
        (slice(6, 10), 4, 4),
    ]
    assert made.blockwise


def test_one_block_of_the_whole_length_is_still_blockwise():
    assert plan(0, 8, steps=8, block_length=8).blockwise


def test_a_last_block_that_is_shorter_gets_fewer_steps():
    made = plan(0, 10, steps=10, block_length=4)
    assert [(block.columns.stop - block.columns.start, block.budget) for block in made.blocks] == [
        (4, 4),
        (4, 4),
        (2, 2),
    ]


@settings(max_examples=300)
@given(data=st.data(), start=st.integers(0, 9), length=st.integers(1, 60))
def test_blocks_tile_the_generation_and_budgets_add_up_with_at_least_one_step_each(data, start, length):
    size = data.draw(st.integers(1, length))
    count = -(-length // size)
    steps = data.draw(st.integers(count, 3 * length + count))
    made = plan(start, length, steps=steps, block_length=size)
    assert len(made.blocks) == count
    assert made.columns == slice(start, start + length)
    at, spent = start, 0
    for block in made.blocks:
        assert (block.columns.start, block.first_step) == (at, spent)
        assert 1 <= block.columns.stop - at <= size
        assert block.budget >= 1
        at, spent = block.columns.stop, spent + block.budget
    assert (at, spent) == (start + length, steps)
