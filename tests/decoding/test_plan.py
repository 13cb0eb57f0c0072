"""Blocks, budgets and the fixed schedules."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask import Base, Selection, plan
from unmask.decoding.observe import Context, Scene, observe
from unmask.decoding.plan import Block, Plan, dream_rates
from unmask.decoding.rows import History
from unmask.decoding.summary import summarize
from unmask.decoding.turns import clocks, unpack
from unmask.types import Observation


def told(schedule: str, step: int, steps: int, left: list[int], started: list[int]) -> Observation:
    """What a sampler sees in one step of a single block."""
    block = Block(slice(0, 1), steps, 0)
    [clock] = islice(clocks(block, Plan((block,), steps, blockwise=False), schedule), step, step + 1)
    active = torch.arange(max(left) + 1) < torch.tensor(left)[:, None]
    scene = Scene(active, active, active.any(-1), torch.tensor(started), clock)
    prediction = summarize(torch.zeros(*active.shape, 2), 2)
    return observe(Base(), prediction, History(), scene, Context(schedule, Selection(), False, ()))


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


@settings(max_examples=50)
@given(length=st.integers(1, 60), steps=st.integers(1, 90), schedule=st.sampled_from(["linear", "dream"]))
def test_every_schedule_commits_all_masks_within_its_budget(length, steps, schedule):
    assert sum(committed(schedule, length, steps)) == length


def test_the_dream_rate_is_one_at_the_last_step_and_one_minus_s_over_t_before():
    assert dream_rates(1).tolist() == [1.0]
    times = [1 - (1 - 1e-3) * i / 4 for i in range(5)]
    assert dream_rates(4).tolist() == pytest.approx(
        [*(1 - times[i + 1] / times[i] for i in range(3)), 1.0], rel=1e-5
    )


@pytest.mark.parametrize("schedule", ["linear", "dream"])
def test_clocks_count_the_steps_of_a_block_and_of_the_whole_run(schedule):
    whole = plan(0, 8, steps=10, block_length=4)
    seen = [tuple(clock)[:3] for block in whole.blocks for clock in clocks(block, whole, schedule)]
    assert seen == [(i % 5, 5, (i + 1) / 10) for i in range(10)]


def test_packed_clocks_mean_the_same_as_numbers():
    whole = plan(0, 8, steps=10, block_length=4)
    for clock in clocks(whole.blocks[1], whole, "dream"):
        packed = unpack(torch.tensor([clock], dtype=torch.float64))
        assert [float(side) for side in packed] == pytest.approx(list(clock))


def test_a_budget_beyond_counting_needs_no_table_of_its_size():
    block = Block(slice(0, 4), 10**12, 0)
    assert next(clocks(block, Plan((block,), 10**12, blockwise=False), "linear")).budget == 10**12


def test_linear_gives_the_remainder_to_the_first_steps():
    started = [10, 4, 0]
    quotas = [told("linear", step, 4, started, started).quota.tolist() for step in range(4)]
    assert quotas == [[3, 1, 0], [3, 1, 0], [2, 1, 0], [2, 1, 0]]


def test_linear_with_more_steps_than_masks_commits_one_each_and_then_none():
    assert committed("linear", 3, 5) == [1, 1, 1, 0, 0]


def test_rate_is_the_share_of_the_masks_that_are_left():
    obs = told("linear", 0, 4, [8, 0], [8, 0])
    assert (obs.quota.tolist(), obs.rate.tolist()) == ([2, 0], [0.25, 0.0])
    obs = told("dream", 3, 4, [8], [8])
    assert (obs.quota.tolist(), obs.rate.tolist()) == ([8], [1.0])


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


@settings(max_examples=200)
@given(start=st.integers(0, 40), length=st.integers(1, 60), size=st.integers(1, 20))
def test_blocks_on_a_grid_begin_at_multiples_of_their_length(start, length, size):
    size = min(size, length)
    count = len(plan(start, length, steps=200, block_length=size, grid=True).blocks)
    made = plan(start, length, steps=count, block_length=size, grid=True)
    assert [block.budget for block in made.blocks] == [1] * count
    assert made.columns == slice(start, start + length)
    assert all(block.columns.start % size == 0 for block in made.blocks[1:])
    assert all(block.columns.stop % size == 0 for block in made.blocks[:-1])
