"""The way of a batch through its plan: blocks, budgets, the end of a text. Knows no model and no sampler."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas, ended
from unmask.decoding.fuse import fused
from unmask.decoding.plan import DIAL, Block, Plan, hands
from unmask.types import ScheduleName


class View(NamedTuple):
    """What is left to do in a block."""

    masked: Tensor  # [B, W] bool, in rows whose text has not ended
    active: Tensor  # [B, W] bool, of those the ones inside the block
    running: Tensor  # [B] bool, rows with anything active
    fresh: Tensor  # [B] bool, of those the ones that changed since their last forward
    runs: int  # how many rows run
    changed: int  # how many of them need a forward

    @property
    def alive(self) -> bool:
        """Any row runs."""
        return self.runs > 0

    @property
    def everyone(self) -> bool:
        """All rows run."""
        return self.runs == len(self.running)

    @property
    def forward(self) -> bool:
        """Any row needs a forward."""
        return self.changed > 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A reverse step to be taken, or, with `leftover`, what the budget left to be filled in."""

    canvas: Canvas
    number: int  # of the block
    block: Block
    window: slice  # the columns that the sampler looks at
    view: View
    started: Tensor  # [B] masks when the block began
    hand: Tensor  # [1, 4] where it stands in the block, for `schedule.clock`
    index: int  # counted from 1 over the whole run; a leftover fill repeats the last index
    leftover: bool = False


class Taken(NamedTuple):
    """What came of a turn."""

    canvas: Canvas
    changed: Tensor  # [B] bool, rows that committed anything
    broken: Tensor  # [B] bool, rows whose logits are no numbers
    # to be called before the host waits for the device: makes the next forward ready. What it returns starts
    # it, to be called as soon as every row is known to need it
    prepare: Callable[[], Callable[[], None]] | None = None


Course = Generator[Turn, Taken, None]


def course(
    canvas: Canvas,
    plan: Plan,
    *,
    schedule: ScheduleName,
    span: bool,
    eos_ids: tuple[int, ...] = (),
    reuse: bool = True,
    fill_leftovers: bool = True,
    done: Callable[[Tensor], Tensor] | None = None,
    compiled: bool = False,
) -> Course:
    """Ask for one turn after another until no row has anything left to commit.

    `span`: the window is the whole generation. `eos_ids` end a text, none: it never ends. `reuse`: a row that
    did not change needs no forward. `done` may end rows earlier, for good: tokens [B, N] in, rows [B] bool
    out. `compiled`: look at the rows with few kernels.
    """
    index, over = 0, None
    for number, block in enumerate(plan.blocks):
        window = plan.columns if span else block.columns
        over = _over(canvas, done, over)
        view = _look(canvas, window, block, eos_ids, over, compiled=compiled)
        started = view.active.sum(-1)
        for step in range(block.budget):
            if not view.alive:
                break
            if step % DIAL == 0:
                dial = hands(block, plan, schedule, step).to(canvas.tokens.device)
            index, hand = index + 1, dial[step % DIAL][None]
            taken = yield Turn(canvas, number, block, window, view, started, hand, index)
            canvas = taken.canvas
            if step + 1 == block.budget and not fill_leftovers:
                taken = taken._replace(prepare=None)
            over = _over(canvas, done, over)
            view = _look(
                *(canvas, window, block, eos_ids, over),
                step=index,
                taken=taken,
                reuse=reuse,
                compiled=compiled,
            )
        if view.alive and fill_leftovers:  # the budget is spent: nothing may stay masked
            taken = yield Turn(canvas, number, block, window, view, started, hand, index, True)
            [broken] = ask(pack(taken.broken), 1)()
            _check_logits(broken, index)
            canvas = taken.canvas


def _over(canvas: Canvas, done: Callable[[Tensor], Tensor] | None, before: Tensor | None) -> Tensor | None:
    """Rows [B] that need no more, those of `before` among them."""
    if done is None:
        return None
    return done(canvas.tokens) if before is None else before | done(canvas.tokens)


def _look(
    canvas: Canvas,
    window: slice,
    block: Block,
    eos_ids: tuple[int, ...],
    over: Tensor | None,
    *,
    step: int = 0,
    taken: Taken | None = None,
    reuse: bool = True,
    compiled: bool = False,
) -> View:
    """What is left after what was `taken` in `step`; None: everything is new.

    This is the one host read of a step, so it also says which rows had broken logits in it. The device waits
    for what the host does next, so a forward that is needed for certain starts here.
    """
    tokens = canvas.tokens[:, window]
    generated = canvas.tokens[:, canvas.start :] if eos_ids else None
    if compiled:  # for one shape, not one for every length of a canvas
        tokens = tokens.clone(memory_format=torch.contiguous_format)
        generated = None if generated is None else generated.clone(memory_format=torch.contiguous_format)
    masked, active, running, fresh, packed = fused(_left, when=compiled)(
        tokens,
        generated,
        None if window == block.columns else _inside(block, window, canvas.tokens.device),
        over,
        None if taken is None or not reuse else taken.changed,
        None if taken is None else taken.broken,
        canvas.mask_id,
        eos_ids,
    )
    answer = ask(packed, 3)
    go_on = None if taken is None or taken.prepare is None else taken.prepare()
    runs, changed, broken = answer()
    _check_logits(broken, step)
    if go_on is not None and len(changed) == len(running):
        go_on()
    return View(masked, active, running, fresh, len(runs), len(changed))


def _left(
    tokens: Tensor,
    generated: Tensor | None,
    inside: Tensor | None,
    over: Tensor | None,
    changed: Tensor | None,
    broken: Tensor | None,
    mask_id: int,
    eos_ids: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """`masked`, `active`, `running` and `fresh` of a View, and which rows run, are fresh, are broken, packed.

    `tokens` [B, W] are the window's, `generated` [B, L] those of the generation, where they can end;
    `inside` [W] says which of the window belong to the block, `over` [B] which rows need no more.
    """
    masked = tokens == mask_id
    if generated is not None:
        masked = masked & ~ended(generated, mask_id, eos_ids).any(-1, keepdim=True)
    if over is not None:
        masked = masked & ~over[:, None]
    # a tensor of its own: what is compiled for two of them would not do for one
    active = masked.clone() if inside is None else masked & inside
    running = active.any(-1)
    fresh = running if changed is None else running & changed
    failed = torch.zeros_like(running) if broken is None else broken
    return masked, active, running, fresh, pack(running, fresh, failed)


def _inside(block: Block, window: slice, device: torch.device) -> Tensor:
    """Columns of the window that belong to the block, [W] bool."""
    column = torch.arange(window.start, window.stop, device=device)
    inside: Tensor = (column >= block.columns.start) & (column < block.columns.stop)
    return inside


def pack(*flags: Tensor) -> Tensor:
    """Some flags [B] as the bits of one number per row, [B]."""
    packed = flags[0].long()
    for bit, flag in enumerate(flags[1:], start=1):
        packed = packed | flag.long() << bit
    return packed


def ask(packed: Tensor, flags: int) -> Callable[[], list[list[int]]]:
    """Sends packed flags to the host. What is returned waits for them, but for nothing that the device was
    given to do since, and says for each flag the rows where it is set."""
    values, sent = _send(packed) if packed.is_cuda else (packed.cpu(), None)

    def answer() -> list[list[int]]:
        if sent is not None:
            sent.synchronize()
        bits = values.tolist()
        return [[row for row, value in enumerate(bits) if value >> bit & 1] for bit in range(flags)]

    return answer


def _send(packed: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """A copy on its way from a GPU, beside what else that does, and when it has arrived."""
    aside = _aside(packed.device)
    aside.wait_stream(torch.cuda.current_stream(packed.device))
    with torch.cuda.stream(aside):
        values = packed.to("cpu", non_blocking=True)
    packed.record_stream(aside)
    return values, aside.record_event()


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]


def _check_logits(broken: list[int], step: int) -> None:
    """Refuse logits that are no numbers."""
    if broken:
        raise ValueError(
            f"the model returned NaN or infinite logits at step {step}, row {', '.join(map(str, broken))}; "
            "check its weights and dtype"
        )
