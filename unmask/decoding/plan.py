"""Blocks, step budgets and the fixed schedules of LLaDA and Dream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.errors import FieldError, whole
from unmask.types import ScheduleName

DREAM_EPS = 1e-3  # Dream's time grid runs from 1 to this
DIAL = 256  # steps that are told to a device at once


@dataclass(frozen=True, slots=True)
class Block:
    """Columns decoded together, and the steps they may take."""

    columns: slice
    budget: int
    first_step: int  # steps planned for the blocks before


@dataclass(frozen=True, slots=True)
class Plan:
    """How a generation is cut into blocks. `blockwise` is the semi-autoregressive regime."""

    blocks: tuple[Block, ...]
    steps: int
    blockwise: bool

    @property
    def columns(self) -> slice:
        """All columns of the generation."""
        return slice(self.blocks[0].columns.start, self.blocks[-1].columns.stop)


def plan(start: int, length: int, *, steps: int, block_length: int | None = None) -> Plan:
    """Cut `length` columns into blocks that share `steps`; without block_length: the full sequence."""
    whole("length", length, 1)
    whole("steps", steps, 1)
    whole("start", start, 0)
    size = length if block_length is None else block_length
    if not isinstance(size, Integral) or not 1 <= size <= length:
        raise FieldError("block_length", size, f"must be between 1 and the generation length {length}")
    edges = [*range(0, length, size), length]
    if steps < len(edges) - 1:
        problem = f"must be at least {len(edges) - 1}, one for each block of {size}"
        raise FieldError("steps", steps, problem, "raise steps or block_length")
    # in proportion to the columns, so that nothing has to divide evenly
    spent = [steps * edge // length for edge in edges]
    blocks = tuple(
        Block(slice(start + left, start + right), spent[i + 1] - spent[i], spent[i])
        for i, (left, right) in enumerate(pairwise(edges))
    )
    return Plan(blocks, steps, blockwise=block_length is not None)


class Clock(NamedTuple):
    """Where each row stands in its budget, [B] each."""

    quota: Tensor  # of its masks, how many the schedule commits in this step
    rate: Tensor  # and which share
    step: Tensor
    progress: Tensor


def hands(block: Block, plan: Plan, schedule: ScheduleName, first: int) -> Tensor:
    """Where the steps of a block stand, the next DIAL ones from `first` on: [n, 4] for `clock`.

    A table, so that a device need not be told at every step.
    """
    last = min(first + DIAL, block.budget)
    step = torch.arange(first, last, dtype=torch.float64)
    rates = dream_rates(block.budget)[first:last] if schedule == "dream" else torch.zeros_like(step)
    progress = (block.first_step + step + 1) / plan.steps
    return torch.stack([step, torch.full_like(step, block.budget), progress, rates.double()], dim=-1)


def clock(hand: Tensor, schedule: ScheduleName, masks: Tensor, started: Tensor) -> Clock:
    """What a hand [1 or B, 4] tells rows with `masks` [B] left of the `started` [B] that the block had."""
    step, budget, progress, rate = hand.expand(len(masks), -1).unbind(-1)
    if schedule == "dream":
        rate = rate.float()
        quota = (masks * rate).floor().long()
    else:
        quota = linear_quota(started, step.long(), budget.long())
        rate = quota / masks.clamp(min=1)
    return Clock(quota, rate, step.long(), progress.float())


def linear_quota(started: Tensor, step: Tensor, budget: Tensor) -> Tensor:
    """LLaDA: the masks at block start in equal parts, the remainder going to the first steps, [B]."""
    return started // budget + (step < started % budget)


def dream_rates(budget: int) -> Tensor:
    """Dream: a masked position's chance to be freed in each step, 1 - s/t on a grid from 1 to eps; 1 in the
    last."""
    times = torch.linspace(1, DREAM_EPS, budget + 1)
    rates = 1 - times[1:] / times[:-1]
    rates[-1] = 1
    return rates
