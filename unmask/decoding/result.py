"""From a stream of steps to a Result: the tokens, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.checks import check_written, is_model
from unmask.decoding.draw import NoiseSource
from unmask.decoding.loop import denoise
from unmask.decoding.options import DEFAULTS, Options
from unmask.decoding.plan import Plan
from unmask.types import Cache, Counts, MaskedLM, Sampler, Step

Finish = Literal["eos", "length", "stop"]  # "stop" means a stop string, which only texts have


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Counts[Tensor]):
    """The canvas of a finished run, why each row ended, and its cost (the fields of `Counts`).

    Attributes:
        tokens: [B, N], with end tokens in place of masks after the end of a text.
        start: The first generated column.
        lead: [B] number of prompt tokens from `start` on. None means none.
        finish: Why each row ended: "eos", "stop" or "length".
        evaluations: Forward passes of the whole batch.
    """

    tokens: Tensor
    start: int
    lead: Tensor | None = None
    finish: tuple[Finish, ...]
    evaluations: int

    @property
    def generated(self) -> Tensor:
        """The columns from `start` on, [B, L]; the first `lead` of them belong to the prompt."""
        return self.tokens[:, self.start :]

    def texts(self, length: int) -> list[list[int]]:
        """Return the first `length` generated tokens of each row."""
        lead = [0] * len(self.tokens) if self.lead is None else self.lead.tolist()
        rows = zip(self.generated.tolist(), lead, strict=True)
        return [tokens[first : first + length] for tokens, first in rows]

    def per_row(self) -> list[Counts[int]]:
        """Return the counts of each row."""
        names = [field.name for field in fields(Counts)]
        rows = zip(*(getattr(self, name).tolist() for name in names), strict=True)
        return [Counts(**dict(zip(names, row, strict=True))) for row in rows]


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
    """Run the loop to its end and return the result."""
    is_model(model)
    steps = denoise(model, canvas, sampler, plan, options, cache=cache, noise=noise)
    result = collect(steps, canvas, model.info.eos_ids if options.stop_at_eos else ())
    check_written(result.generated, model.info)
    return result


def collect(steps: Iterable[Step], canvas: Canvas, eos_ids: tuple[int, ...]) -> Result:
    """Run through all steps and return the result. `eos_ids` end a text."""
    counter = Counter(canvas)
    for step in steps:
        counter.add(step)
    return counter.result(eos_ids)


class Counter:
    """Keep a few numbers of every step, and add them up at the end."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas  # the canvas before the first step
        self.tokens = canvas.tokens  # the tokens after the last step
        self.evaluations = 0
        self._steps: list[tuple[Tensor, ...]] = []  # [B] each
        self._leftover: list[bool] = []

    def add(self, step: Step) -> None:
        """Count one step."""
        self.tokens = step.tokens
        self.evaluations += step.forward
        decision = step.decision
        committed = decision.commit.sum(-1)
        changed = [part.sum(-1) for part in (decision.revoke, decision.rewrite) if part is not None]
        revoked = sum(changed, self._nothing)
        rows = step.fresh if step.guesses is None else step.fresh * (1 + step.guesses)
        self._steps.append(
            (step.running, step.fresh, rows, decision.forced, committed, decision.eligible.any(-1), revoked)
        )
        self._leftover.append(step.leftover)

    @cached_property
    def _nothing(self) -> Tensor:
        return torch.zeros(len(self.canvas.tokens), dtype=torch.long, device=self.canvas.tokens.device)

    def counts(self) -> Counts[Tensor]:
        """Return the counts so far, [B] each."""
        if not self._steps:
            return Counts(**dict.fromkeys((field.name for field in fields(Counts)), self._nothing))
        columns = zip(*self._steps, strict=True)
        running, fresh, rows, forced, committed, eligible, revoked = map(torch.stack, columns)
        leftover = torch.tensor(self._leftover, device=running.device)[:, None]
        running, forced = running & ~leftover, forced & running & ~leftover
        return Counts(
            steps=running.sum(0),
            forwards=fresh.sum(0),
            rows=rows.sum(0),
            accepted=(committed * ~(forced | leftover)).sum(0),
            forced=(committed * forced).sum(0),
            forced_steps=forced.sum(0),
            empty_steps=(running & ~eligible).sum(0),
            leftovers=(committed * leftover).sum(0),
            revoked=revoked.sum(0),
        )

    def result(self, eos_ids: tuple[int, ...]) -> Result:
        """Return the result so far."""
        final = replace(self.canvas, tokens=self.tokens).close(eos_ids)
        ended = final.finished(eos_ids).tolist()
        finish: tuple[Finish, ...] = tuple("eos" if end else "length" for end in ended)
        counts, names = self.counts(), [field.name for field in fields(Counts)]
        return Result(
            tokens=final.tokens,
            start=final.start,
            lead=final.lead,
            finish=finish,
            evaluations=self.evaluations,
            **{name: getattr(counts, name) for name in names},
        )
