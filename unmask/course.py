"""The way of a batch through its plan: blocks, budgets, the end of a text. Knows no model and no sampler."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.canvas import Canvas
from unmask.schedule import Block, Plan, quota_and_rate
from unmask.types import ScheduleName


class View(NamedTuple):
    """What is left to do in a block."""

    masked: Tensor  # [B, W] bool, in rows whose text has not ended
    active: Tensor  # [B, W] bool, of those the ones inside the block
    running: Tensor  # [B] bool, rows with anything active
    fresh: Tensor  # [B] bool, of those the ones that changed since their last forward
    alive: bool  # any row runs
    everyone: bool  # all rows run
    forward: bool  # any row needs a forward


@dataclass(frozen=True, slots=True)
class Turn:
    """A reverse step to be taken, or, with `leftover`, what the budget left to be filled in."""

    canvas: Canvas
    number: int  # of the block
    block: Block
    window: slice  # the columns that the sampler looks at
    view: View
    started: Tensor  # [B] masks when the block began
    step: int  # steps taken in this block
    index: int  # counted from 1 over the whole run; a leftover fill repeats the last index
    leftover: bool = False


class Taken(NamedTuple):
    """What came of a turn."""

    canvas: Canvas
    changed: Tensor  # [B] bool, rows that committed anything
    broken: Tensor  # [B] bool, rows whose logits are no numbers


class Clock(NamedTuple):
    """Where each row stands in its budget, [B] each."""

    quota: Tensor
    rate: Tensor
    step: Tensor
    progress: Tensor


Course = Generator[Turn, Taken, None]


def course(
    canvas: Canvas,
    plan: Plan,
    *,
    span: bool,
    eos_ids: tuple[int, ...] = (),
    reuse: bool = True,
    fill_leftovers: bool = True,
    done: Callable[[Tensor], Tensor] | None = None,
) -> Course:
    """Ask for one turn after another until no row has anything left to commit.

    `span`: the window is the whole generation. `eos_ids` end a text, none: it never ends. `reuse`: a row that
    did not change needs no forward. `done` may end rows earlier: tokens [B, N] in, rows [B] bool out.
    """
    index = 0
    for number, block in enumerate(plan.blocks):
        window = plan.columns if span else block.columns
        view = _look(canvas, window, block, eos_ids, done)
        started = view.active.sum(-1)
        for step in range(block.budget):
            if not view.alive:
                break
            index += 1
            taken = yield Turn(canvas, number, block, window, view, started, step, index)
            canvas = taken.canvas
            view = _look(canvas, window, block, eos_ids, done, step=index, taken=taken, reuse=reuse)
        if view.alive and fill_leftovers:  # the budget is spent: nothing may stay masked
            taken = yield Turn(canvas, number, block, window, view, started, block.budget, index, True)
            if read(taken.broken)[0]:
                raise ValueError(_broken_logits(taken.broken, index))
            canvas = taken.canvas


def clock(turn: Turn, plan: Plan, schedule: ScheduleName) -> Clock:
    """Where the rows of a turn stand in their budget."""
    left = turn.view.active.sum(-1)
    quota, rate = quota_and_rate(
        schedule, left, started=turn.started, step=turn.step, budget=turn.block.budget
    )
    progress = (turn.block.first_step + turn.step + 1) / plan.steps
    return Clock(quota, rate, torch.full_like(left, turn.step), torch.full_like(rate, progress))


def _look(
    canvas: Canvas,
    window: slice,
    block: Block,
    eos_ids: tuple[int, ...],
    done: Callable[[Tensor], Tensor] | None,
    *,
    step: int = 0,
    taken: Taken | None = None,
    reuse: bool = True,
) -> View:
    """What is left after what was `taken` in `step`; None: everything is new.

    This is the one host read of a step, so it also says which rows had broken logits in it.
    """
    masked = canvas.masked(window)
    if eos_ids:
        masked = masked & ~canvas.finished(eos_ids)[:, None]
    if done is not None:
        masked = masked & ~done(canvas.tokens)[:, None]
    active = masked if window == block.columns else masked & _inside(block, window, masked.device)
    running = active.any(-1)
    fresh = running if taken is None or not reuse else running & taken.changed
    broken = torch.zeros_like(running) if taken is None else taken.broken
    alive, idle, forward, failed = read(running, ~running, fresh, broken)
    if failed:
        raise ValueError(_broken_logits(broken, step))
    return View(masked, active, running, fresh, alive, not idle, forward)


def _inside(block: Block, window: slice, device: torch.device) -> Tensor:
    """Columns of the window that belong to the block, [W] bool."""
    column = torch.arange(window.start, window.stop, device=device)
    inside: Tensor = (column >= block.columns.start) & (column < block.columns.stop)
    return inside


def read(*flags: Tensor) -> list[bool]:
    """For each of some flags [B], whether any is set, from the device in one read."""
    values: list[bool] = torch.stack(flags).any(-1).tolist()
    return values


def _broken_logits(broken: Tensor, step: int) -> str:
    rows = ", ".join(str(row) for row, bad in enumerate(broken.tolist()) if bad)
    return (
        f"the model returned NaN or infinite logits at step {step}, row {rows}; check its weights and dtype"
    )
