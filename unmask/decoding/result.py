"""From a stream of steps to a Result: what came out, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.checks import check_written, is_model
from unmask.decoding.draw import NoiseSource
from unmask.decoding.loop import DEFAULTS, Options, denoise
from unmask.decoding.plan import Plan
from unmask.types import Cache, MaskedLM, Sampler, Step

Finish = Literal["eos", "length", "stop"]  # "stop", at a stop string, is said of texts alone


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
    is_model(model)
    steps = denoise(model, canvas, sampler, plan, options, cache=cache, noise=noise)
    result = collect(steps, canvas, model.info.eos_ids if options.stop_at_eos else ())
    check_written(result.generated, model.info)
    return result


def collect(steps: Iterable[Step], canvas: Canvas, eos_ids: tuple[int, ...]) -> Result:
    """Count what the steps did to the canvas they started from; `eos_ids` end a text, none: it never ends."""
    tally = Tally(canvas, eos_ids)
    for step in steps:
        tally.add(step)
    return tally.result()


class _Counted(NamedTuple):
    """What counts of a step; of several, with one dimension more."""

    running: Tensor  # [B]
    fresh: Tensor  # [B]
    forced: Tensor  # [B]
    commit: Tensor  # [B, W]
    eligible: Tensor  # [B, W]


AT_ONCE = 64  # steps counted: on a device, a dozen small sums per step would cost more than the decision
COUNTS = ("steps", "forwards", "accepted", "forced", "forced_steps", "empty_steps", "leftovers")


class Tally:
    """A Result in the making."""

    def __init__(self, canvas: Canvas, eos_ids: tuple[int, ...]) -> None:
        self.canvas = canvas
        self.eos_ids = eos_ids
        self.evaluations = 0
        self._kind: tuple[int, bool] | None = None  # of what waits: its width, and whether it is leftovers
        self._waiting: list[_Counted] = []
        nothing = torch.zeros(len(canvas.tokens), dtype=torch.long, device=canvas.tokens.device)
        self._counts = dict.fromkeys(COUNTS, nothing)

    def add(self, step: Step) -> None:
        """Note one step."""
        self.canvas = replace(self.canvas, tokens=step.tokens)
        self.evaluations += step.forward
        commit, eligible, forced = step.decision.commit, step.decision.eligible, step.decision.forced
        kind = commit.shape[-1], step.leftover
        if kind != self._kind or len(self._waiting) == AT_ONCE:
            self._count()
        self._kind = kind
        self._waiting.append(_Counted(step.running, step.fresh, forced, commit, eligible))

    def _count(self) -> None:
        """Add up what waits."""
        if not self._waiting:
            return
        steps = _Counted(*(torch.stack(values) for values in zip(*self._waiting, strict=True)))
        self._waiting = []
        costs = _leftover_costs(steps) if self._kind and self._kind[1] else _costs(steps)
        for name, each in costs.items():
            self._counts[name] = self._counts[name] + each.sum(0)

    def counts(self) -> dict[str, Tensor]:
        """What the steps cost so far, [B] each."""
        self._count()
        return dict(self._counts)

    def result(self) -> Result:
        """What came out."""
        final = self.canvas.close(self.eos_ids)
        ended = final.finished(self.eos_ids).tolist()
        finish: tuple[Finish, ...] = tuple("eos" if end else "length" for end in ended)
        return Result(
            tokens=final.tokens,
            start=final.start,
            finish=finish,
            evaluations=self.evaluations,
            **self.counts(),
        )


def _costs(steps: _Counted) -> dict[str, Tensor]:
    """What some steps cost, [steps, B] each."""
    forced, committed = steps.forced & steps.running, steps.commit.sum(-1)
    return {
        "steps": steps.running,
        "forwards": steps.fresh,
        "accepted": committed * ~forced,
        "forced": committed * forced,
        "forced_steps": forced,
        "empty_steps": steps.running & ~steps.eligible.any(-1),
    }


def _leftover_costs(steps: _Counted) -> dict[str, Tensor]:
    """The same of steps that filled what was left."""
    return {"forwards": steps.fresh, "leftovers": steps.commit.sum(-1)}
