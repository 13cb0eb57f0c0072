"""Blocks, step budgets and the fixed schedules of LLaDA and Dream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral

import torch
from torch import Tensor

from unmask.checks import whole
from unmask.types import ScheduleName

DREAM_EPS = 1e-3  # Dream's time grid runs from 1 to this


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
        raise ValueError(f"block_length must be between 1 and the generation length {length}, got {size}")
    edges = [*range(0, length, size), length]
    if steps < len(edges) - 1:
        raise ValueError(
            f"steps must be at least 1 per block: got steps={steps} for {len(edges) - 1} blocks of {size}; "
            "raise steps or block_length"
        )
    # in proportion to the columns, so that nothing has to divide evenly
    spent = [steps * edge // length for edge in edges]
    blocks = tuple(
        Block(slice(start + left, start + right), spent[i + 1] - spent[i], spent[i])
        for i, (left, right) in enumerate(pairwise(edges))
    )
    return Plan(blocks, steps, blockwise=block_length is not None)


def quota_and_rate(
    schedule: ScheduleName, masks: Tensor, *, started: Tensor, step: int, budget: int
) -> tuple[Tensor, Tensor]:
    """How many of the current `masks` [B] the schedule commits in this step, and which share, [B] each."""
    if schedule == "dream":
        rate = torch.full_like(masks, dream_rate(step, budget), dtype=torch.float32)
        return (masks * rate).floor().to(masks.dtype), rate
    quota = linear_quota(started, step, budget)
    return quota, quota / masks.clamp(min=1)


def linear_quota(started: Tensor, step: int, budget: int) -> Tensor:
    """LLaDA: the masks at block start in equal parts, the remainder going to the first steps, [B]."""
    return started // budget + (step < started % budget)


def dream_rate(step: int, budget: int) -> float:
    """Dream: a masked position's chance to be freed, 1 - s/t on a grid from 1 to eps; 1 in the last step."""
    if step == budget - 1:
        return 1.0
    times = torch.linspace(1, DREAM_EPS, budget + 1)
    return float(1 - times[step + 1] / times[step])
