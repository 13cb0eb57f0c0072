"""Which step comes next: blocks, step budgets and the end of a text. Independent of models and samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.plan import Block, Plan, dream_rates, remaining_rates
from unmask.decoding.rows import Rows
from unmask.decoding.transfer import to_device, widest_float
from unmask.types import ScheduleName


class Todo(NamedTuple):
    """The positions and rows that are still to be decoded in a block."""

    masked: Tensor  # [B, W] bool, masks in rows whose text has not ended
    active: Tensor  # [B, W] bool, masked positions inside the block
    running: Tensor  # [B] bool, rows with an active position or still open without one
    fresh: Tensor  # [B] bool, running rows that changed since their last forward
    num_running: int
    num_fresh: int
    urgent: Tensor | None = None  # [B, W] bool, columns that must progress, if blocks overlap


class Clock(NamedTuple):
    """The place of a step in its budget: numbers, or tensors [B] for several rows."""

    step: int | Tensor  # steps already taken in the block
    budget: int | Tensor  # step budget of the block
    progress: float | Tensor  # share of all steps used, this one included
    rate: float | Tensor  # share of the masks that the schedule commits now; 0 if it counts positions


@dataclass(frozen=True, slots=True)
class Turn:
    """One reverse step to take. With `leftover`, it fills the masks that remain after the budget is spent."""

    index: int  # counted from 1 over the whole run; a leftover fill repeats the last index
    number: int  # number of the block
    block: Block
    window: slice  # the columns that the sampler sees
    todo: Todo
    started: Tensor  # [B] masks when the block began; its width for the schedule "block"
    clock: Clock | Tensor  # packed as [B, 4] float64 if it differs from row to row
    leftover: bool = False


Look = Callable[[Rows, slice, Block], Todo]
RATES = {"dream": dream_rates, "remaining": remaining_rates}


def turns(rows: Rows, plan: Plan, look: Look) -> Iterator[Turn]:
    """Yield the turns of a batch: blocks in order, each until it is complete or its budget is spent.

    The caller commits every turn to `rows` before it asks for the next one.
    """
    index, schedule = 0, rows.options.schedule or rows.info.schedule
    device, width = rows.canvas.tokens.device, plan.columns.stop - plan.columns.start
    own_columns = rows.own_columns(plan)
    own_steps = None if own_columns is None else [-(-plan.steps * own // width) for own in own_columns]
    limits = None  # [B] budgets of the rows, if one block holds them all
    if plan.overlap is not None:
        limits = None if own_steps is None else to_device(torch.tensor(own_steps), device)
        rows.let_blocks_overlap(plan.overlap)
    for number, block in enumerate(plan.blocks):
        window = plan.columns if rows.needs.span else block.columns
        rows.start_block(window, block)
        todo = look(rows, window, block)
        started = (todo.active if plan.overlap is None else todo.masked).sum(-1)
        if schedule == "block":  # count all columns, even those of a prompt
            started = torch.full_like(started, block.columns.stop - block.columns.start)
            if plan.overlap is not None and own_columns is not None:
                started = to_device(torch.tensor(own_columns), device)
        clock: Clock | Tensor = Clock(0, block.budget, 0.0, 0.0)
        times: Iterator[Clock | Tensor] = clocks(block, plan, schedule)
        if own_steps is not None:
            times = own_clocks(block, plan, schedule, own_steps, device)
        for clock in times:
            if not todo.num_running:
                break
            index += 1
            yield Turn(index, number, block, window, todo, started, clock)
            if limits is not None:
                rows.resting = limits <= index
            todo = look(rows, window, block)
        if rows.resting is not None:  # now these rows fill what is left, like the others
            rows.resting = None
            todo = look(rows, window, block)
        # under a constraint, tokens that do not fit the others wait for the next fill
        fills = block.columns.stop - block.columns.start if rows.language is not None else 1
        for _ in range(fills if rows.options.fill_leftovers else 0):
            if not todo.num_running:
                break
            if plan.overlap is not None:
                todo = todo._replace(active=todo.masked)
            yield Turn(index, number, block, window, todo, started, clock, leftover=True)
            todo = look(rows, window, block)  # raises if the last logits were not finite


def clocks(block: Block, plan: Plan, schedule: ScheduleName) -> Iterator[Clock]:
    """Yield the clock of every step of a block."""
    share = RATES.get(schedule)
    rates = repeat(0.0, block.budget) if share is None else share(block.budget).tolist()
    for step, rate in enumerate(rates):
        taken = block.first_step + step + 1
        yield Clock(step, block.budget, min(taken / plan.steps, 1.0), rate)


def own_clocks(
    block: Block, plan: Plan, schedule: ScheduleName, own_steps: Sequence[int], device: torch.device
) -> Iterator[Tensor]:
    """Yield the packed clocks of rows with their own step budgets, for every step of a block.

    If blocks overlap, the budget is that of the block too, and a clock stands still when it is spent.
    """
    tracks = {}
    for steps in set(own_steps):
        own = block if plan.overlap is None else replace(block, budget=steps)
        tracks[steps] = list(clocks(own, replace(plan, steps=steps), schedule))
    for step in range(block.budget):
        now = [tracks[steps][min(step, len(tracks[steps]) - 1)] for steps in own_steps]
        yield to_device(torch.tensor(now, dtype=widest_float(device)), device)


def unpack(clock: Tensor) -> Clock:
    """Return the Clock of rows [B] from their packed numbers [B, 4] float64."""
    step, budget, progress, rate = clock.unbind(-1)
    return Clock(step.long(), budget.long(), progress.float(), rate.float())
