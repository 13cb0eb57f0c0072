"""Blocks, step budgets and the fixed schedules of LLaDA, Dream and A2D."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from numbers import Integral

import torch
from torch import Tensor

from unmask.errors import FieldError, probability, whole

DREAM_EPS = 1e-3  # Dream's time grid runs from 1 to this


@dataclass(frozen=True, slots=True)
class Block:
    """Columns decoded together, and their step budget.

    Attributes:
        columns: The columns of the block.
        budget: Steps that it may take.
        first_step: Steps planned for all earlier blocks.
    """

    columns: slice
    budget: int
    first_step: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """Blocks that overlap, so that several are open at a time.

    Attributes:
        parts: The columns of each block.
        at: The next block opens when this share of the last open one is filled.
    """

    parts: tuple[slice, ...]
    at: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How a generation is cut into blocks.

    Attributes:
        blocks: The blocks, in order.
        steps: The step budget of all blocks together.
        blockwise: True in the semi-autoregressive regime. False means that the whole generation is one block.
        overlap: How blocks overlap inside the only entry of `blocks`. None means that they do not.
    """

    blocks: tuple[Block, ...]
    steps: int
    blockwise: bool
    overlap: Overlap | None = None

    @property
    def columns(self) -> slice:
        """All columns of the generation."""
        return slice(self.blocks[0].columns.start, self.blocks[-1].columns.stop)


def plan(
    start: int,
    length: int,
    *,
    steps: int,
    block_length: int | None = None,
    grid: bool = False,
    alone_every: int | None = None,
    even: bool = False,
    next_block_at: float | None = None,
) -> Plan:
    """Cut `length` columns into blocks that share `steps`; without block_length, there is one block.

    Blocks start at `start` or, if `grid`, at multiples of their length, so that the first may be shorter.
    With `alone_every`, the first of every `alone_every` columns is a block by itself. Blocks share the steps
    in proportion to their sizes or, if `even`, in equal parts. With `next_block_at`, a block opens when this
    share of the block before is filled, and all blocks share one budget.
    """
    whole("length", length, 1)
    whole("steps", steps, 1)
    whole("start", start, 0)
    size = length if block_length is None else block_length
    if not isinstance(size, Integral) or not 1 <= size <= length:
        raise FieldError("block_length", size, f"must be between 1 and the generation length {length}")
    offset = start % size if grid and block_length is not None else 0
    edges = [0, *range(size - offset, length, size), length]
    if alone_every is not None:
        edges = sorted({*edges, *range(1, length, alone_every)})
    if steps < len(edges) - 1:
        problem = f"must be at least {len(edges) - 1}, one for each block of {size}"
        raise FieldError("steps", steps, problem, "raise steps or block_length")
    cuts = [slice(start + left, start + right) for left, right in pairwise(edges)]
    sizes = [right - left for left, right in pairwise(edges)]
    if next_block_at is not None:
        probability("next_block_at", next_block_at)
        if block_length is None:
            raise FieldError("next_block_at", next_block_at, "needs blocks", "set block_length")
        whole_generation = Block(slice(start, start + length), steps, 0)
        return Plan((whole_generation,), steps, blockwise=True, overlap=Overlap(tuple(cuts), next_block_at))
    weights = [1] * len(sizes) if even else sizes
    return Plan(share_steps(cuts, weights, steps), steps, blockwise=block_length is not None)


def share_steps(cuts: Sequence[slice], weights: Sequence[int], steps: int) -> tuple[Block, ...]:
    """Return blocks that share `steps` in proportion to their weights, with at least one step each."""
    spent = [0]
    for number, reached in enumerate(accumulate(weights), start=1):
        fair = max(steps * reached // sum(weights), spent[-1] + 1)
        spent.append(min(fair, steps - len(weights) + number))  # keep one step for each later block
    budgets = zip(cuts, pairwise(spent), strict=True)
    return tuple(Block(cut, after - before, before) for cut, (before, after) in budgets)


def remaining_rates(budget: int) -> Tensor:
    """Return the share of the masks left that A2D's schedule commits in each step: 1/n, 1/(n - 1), ..., 1.

    The arithmetic is that of A2D's code, because float32 decides which way a half rounds.
    """
    times = 1 - torch.arange(budget, -1, -1) / budget
    return 1 - (1 - times[1:]) / (1 - times[:-1])


def dream_rates(budget: int) -> Tensor:
    """Return the probability that Dream's schedule commits a masked position, for each step.

    It is 1 - s/t for a step from time t to time s, on a grid from 1 to eps. In the last step it is 1.
    """
    times = torch.linspace(1, DREAM_EPS, budget + 1, dtype=torch.float32)
    rates = 1 - times[1:] / times[:-1]
    rates[-1] = 1
    return rates
