"""From a stream of steps to a Result: what came out, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unmask.canvas import Canvas
from unmask.draw import NoiseSource
from unmask.loop import DEFAULTS, Options, denoise
from unmask.schedule import Plan
from unmask.types import Cache, MaskedLM, Sampler, Step

Finish = Literal["eos", "length"]


@dataclass(frozen=True, slots=True)
class Result:
    """A decoded batch. Counts are per row and equal those of the row decoded alone."""

    tokens: Tensor  # [B, N]; masks behind the end of a text are end tokens
    start: int
    steps: Tensor  # [B] reverse steps
    forwards: Tensor  # [B] forward passes that the row needed; a step on an unchanged canvas needs none
    accepted: Tensor  # [B] commits by the rule
    forced: Tensor  # [B] commits by the fallback
    forced_steps: Tensor  # [B] steps in which the fallback acted
    empty_steps: Tensor  # [B] steps in which nothing was eligible anywhere
    leftovers: Tensor  # [B] positions filled after the budget was spent
    finish: tuple[Finish, ...]
    evaluations: int  # forward passes of the whole batch

    @property
    def forced_share(self) -> Tensor:
        """Share of steps in which the fallback acted, [B]."""
        return self.forced_steps / self.steps.clamp(min=1)

    @property
    def empty_share(self) -> Tensor:
        """Share of steps in which nothing was eligible, [B] (the released code's fallback statistic)."""
        return self.empty_steps / self.steps.clamp(min=1)

    @property
    def generated(self) -> Tensor:
        """The generated columns, [B, L]."""
        return self.tokens[:, self.start :]


def decode(
    model: MaskedLM,
    canvas: Canvas,
    sampler: Sampler,
    plan: Plan,
    options: Options = DEFAULTS,
    *,
    cache: Cache | None = None,
    noise: NoiseSource | None = None,
) -> Result:
    """Run the loop to its end."""
    steps = denoise(model, canvas, sampler, plan, options, cache=cache, noise=noise)
    return collect(steps, canvas, model.info.eos_ids if options.stop_at_eos else ())


def collect(steps: Iterable[Step], canvas: Canvas, eos_ids: tuple[int, ...]) -> Result:
    """Count what the steps did to the canvas they started from; `eos_ids` end a text, none: it never ends."""
    tokens, evaluations = canvas.tokens, 0
    names = ("steps", "forwards", "accepted", "forced", "forced_steps", "empty_steps", "leftovers")
    count = {name: torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device) for name in names}
    for step in steps:
        tokens, evaluations = step.tokens, evaluations + step.forward
        count["forwards"] += step.fresh
        committed = step.decision.commit.sum(-1)
        if step.leftover:
            count["leftovers"] += committed
            continue
        forced = step.decision.forced & step.running
        count["steps"] += step.running
        count["accepted"] += committed * ~forced
        count["forced"] += committed * forced
        count["forced_steps"] += forced
        count["empty_steps"] += step.running & ~step.decision.eligible.any(-1)
    final = Canvas(tokens, canvas.attend, canvas.start, canvas.mask_id).close(eos_ids)
    ended = final.finished(eos_ids).tolist()
    finish: tuple[Finish, ...] = tuple("eos" if end else "length" for end in ended)
    return Result(tokens=final.tokens, start=canvas.start, finish=finish, evaluations=evaluations, **count)
