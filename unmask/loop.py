"""The one denoising loop. Knows blocks, budgets and caches; knows nothing of text or of any sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from unmask.canvas import Canvas
from unmask.checks import one_of, token_ids, whole
from unmask.draw import NoiseSource, RowNoise, Selection
from unmask.schedule import Block, Plan, quota_and_rate
from unmask.summary import ban, summarize
from unmask.types import (
    Cache,
    Decision,
    MaskedLM,
    Needs,
    Observation,
    Prediction,
    Sampler,
    ScheduleName,
    Step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run may vary besides its sampler."""

    selection: Selection = field(default_factory=Selection)
    schedule: ScheduleName | None = None  # None: the model family's own
    banned_ids: tuple[int, ...] | None = None  # tokens never written; None: the mask token
    min_new_tokens: int = 0  # no end token before this many generated columns
    stop_at_eos: bool = True  # a row is done when no mask is left of its first end token
    fill_leftovers: bool = True  # masks that outlive the budget get the argmax of one more forward
    reuse: bool = True  # an unchanged canvas needs no new forward

    def __post_init__(self) -> None:
        whole("min_new_tokens", self.min_new_tokens, 0)
        if self.schedule is not None:
            one_of("schedule", self.schedule, get_args(ScheduleName))


DEFAULTS = Options()


def denoise(
    model: MaskedLM,
    canvas: Canvas,
    sampler: Sampler,
    plan: Plan,
    options: Options = DEFAULTS,
    *,
    cache: Cache | None = None,
    noise: NoiseSource | None = None,
    done: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Step]:
    """Yield one Step per reverse step until no row has anything left to commit.

    `done` may end rows earlier: given the tokens [B, N], it says which rows need no more, [B] bool.
    """
    run = _Run(model, sampler.needs, plan, options, cache, noise or RowNoise([0] * len(canvas.tokens)), done)
    run.check(canvas)
    index = 0
    for number, block in enumerate(plan.blocks):
        window = run.enter(block)
        view = run.look(canvas, window, block, step=index)
        started = view.active.sum(-1)
        for step in range(block.budget):
            if not view.alive:
                break
            index += 1
            now = run.predict(canvas, window, again=view.forward)
            obs = run.observe(now, view, block, step, started)
            decision = sampler.decide(obs)
            written = obs.drawn if decision.tokens is None else decision.tokens
            decision = replace(decision, commit=decision.commit & view.masked & view.running[:, None])
            canvas = canvas.commit(window, decision.commit, written)
            taken = Step(
                index,
                number,
                window,
                canvas.tokens,
                written,
                decision,
                view.running,
                view.fresh,
                view.forward,
            )
            run.remember(now, decision.carry, None if view.everyone else view.running)
            broken = _broken(now, view)
            del now, obs  # or their logits would outlive the next forward
            view = run.look(canvas, window, block, step=index, changed=decision.commit.any(-1), broken=broken)
            yield taken
        if view.alive and options.fill_leftovers:  # the budget is spent: nothing may stay masked
            last = run.fill(canvas, window, view, block=number, index=index)
            canvas = replace(canvas, tokens=last.tokens)
            yield last


class _View(NamedTuple):
    """What is left to do in a block."""

    masked: Tensor  # [B, W] bool, in rows whose text has not ended
    active: Tensor  # [B, W] bool, of those the ones inside the block
    running: Tensor  # [B] bool, rows with anything active
    fresh: Tensor  # [B] bool, of those the ones that changed since their last forward
    alive: bool  # any row runs
    everyone: bool  # all rows run
    forward: bool  # any row needs a forward


@dataclass(slots=True)
class _Run:
    """One call of `denoise`: its settings, and what its rows remember."""

    model: MaskedLM
    needs: Needs
    plan: Plan
    options: Options
    cache: Cache | None
    noise: NoiseSource
    done: Callable[[Tensor], Tensor] | None
    now: Prediction | None = None
    past: tuple[Prediction, ...] = ()
    seen: Tensor | None = None
    carry: Tensor | None = None

    @property
    def always_fresh(self) -> bool:
        """True if every step must run the model, whether or not the canvas changed."""
        return not (self.options.reuse and self.model.info.deterministic)

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that are never written."""
        return (self.model.info.mask_id,) if self.options.banned_ids is None else self.options.banned_ids

    def check(self, canvas: Canvas) -> None:
        """Refuse what cannot work before the first forward."""
        info, generation, length = self.model.info, self.plan.columns, canvas.tokens.shape[1]
        if info.vocab_size < 2:
            raise ValueError(f"vocab_size must be >= 2, got {info.vocab_size}")
        if canvas.mask_id != info.mask_id:
            raise ValueError(f"the canvas uses mask id {canvas.mask_id}, the model {info.mask_id}")
        if self.options.min_new_tokens > length - canvas.start:
            raise ValueError(
                f"min_new_tokens must be at most the {length - canvas.start} tokens of the generation, "
                f"got {self.options.min_new_tokens}"
            )
        token_ids("eos_ids", info.eos_ids, info.vocab_size)
        token_ids("banned_ids", self.banned, info.vocab_size)
        if len(set(self.banned)) == info.vocab_size:
            raise ValueError("banned_ids rules out every token; leave at least one")
        behind = canvas.masked(slice(generation.stop, length))
        foreign = (canvas.tokens < 0) | (canvas.tokens >= info.vocab_size)
        unplanned, unknown = _read(behind.any(), foreign.any())
        if generation.start < canvas.start or generation.stop > length or unplanned:
            raise ValueError(
                f"the plan covers columns {generation.start} to {generation.stop}, but the canvas generates "
                f"in columns {canvas.start} to {length}; every mask must be inside the plan"
            )
        if unknown:
            token_ids("the canvas", canvas.tokens.flatten().tolist(), info.vocab_size)

    def enter(self, block: Block) -> slice:
        """Start a block; the columns that the sampler looks at in it."""
        if self.cache is not None:
            self.cache.start_block(block.columns)
        if self.needs.span:
            return self.plan.columns
        self.past, self.seen, self.carry = (), None, None
        return block.columns

    def look(
        self,
        canvas: Canvas,
        window: slice,
        block: Block,
        *,
        step: int,
        changed: Tensor | None = None,
        broken: Tensor | None = None,
    ) -> _View:
        """What is left after `step`, which `changed` some rows [B]; None: everything is new.

        This is the one host read of a step, so it also says which rows [B] had `broken` logits in it.
        """
        masked = canvas.masked(window)
        if self.options.stop_at_eos and self.model.info.eos_ids:
            masked = masked & ~canvas.finished(self.model.info.eos_ids)[:, None]
        if self.done is not None:
            masked = masked & ~self.done(canvas.tokens)[:, None]
        column = torch.arange(window.start, window.stop, device=masked.device)
        active = masked & (column >= block.columns.start) & (column < block.columns.stop)
        running = active.any(-1)
        fresh = running if changed is None or self.always_fresh else running & changed
        bad = torch.zeros_like(running) if broken is None else broken
        alive, everyone, forward, failed = _read(running.any(), running.all(), fresh.any(), bad.any())
        if failed:
            raise ValueError(_broken_logits(bad, step))
        return _View(masked, active, running, fresh, alive, everyone, forward)

    def fill(self, canvas: Canvas, window: slice, view: _View, *, block: int, index: int) -> Step:
        """What outlived the budget gets the argmax of the canvas as it is."""
        now = self.predict(canvas, window, again=view.forward)
        broken = _broken(now, view)
        if _read(broken.any())[0]:
            raise ValueError(_broken_logits(broken, index))
        tokens = canvas.commit(window, view.active, now.top1).tokens
        decision = Decision(view.active, torch.zeros_like(view.active), torch.zeros_like(view.running))
        return Step(
            index,
            block,
            window,
            tokens,
            now.top1,
            decision,
            view.running,
            view.fresh,
            view.forward,
            leftover=True,
        )

    def predict(self, canvas: Canvas, window: slice, *, again: bool) -> Prediction:
        """The last prediction, or a new one after a forward pass."""
        if again or self.now is None:
            self.now = None  # the last logits go before the next ones come
            self.now = self.forward(canvas, window)
        return self.now

    def forward(self, canvas: Canvas, window: slice) -> Prediction:
        """One forward pass, without the tokens that may not be written."""
        with torch.no_grad():
            logits = self.model(canvas.tokens, canvas.attend, window, self.cache).float()
        ban(logits, self.banned)
        early = canvas.start + self.options.min_new_tokens - window.start
        if early > 0:
            ban(logits[:, :early], self.model.info.eos_ids)
        return summarize(logits, self.needs.top_k)

    def observe(self, now: Prediction, view: _View, block: Block, step: int, started: Tensor) -> Observation:
        """What the sampler may look at in this step."""
        selection, width = self.options.selection, view.masked.shape[-1]
        left = view.active.sum(-1)
        schedule = self.options.schedule or self.model.info.schedule
        quota, rate = quota_and_rate(schedule, left, started=started, step=step, budget=block.budget)
        return Observation(
            now=now,
            past=self.past,
            seen=torch.zeros_like(left) if self.seen is None else self.seen,
            drawn=now.top1 if selection.greedy else selection.draw(now, self.noise(view.running, width)),
            masked=view.masked,
            active=view.active,
            quota=quota,
            rate=rate,
            step=torch.full_like(left, step),
            progress=torch.full_like(rate, (block.first_step + step + 1) / self.plan.steps),
            carry=self.carry,
            noise=self.noise(view.running, width) if self.needs.noise else None,
            blockwise=self.plan.blockwise,
            eos_ids=self.model.info.eos_ids,
        )

    def remember(self, now: Prediction, carry: Tensor | None, running: Tensor | None) -> None:
        """Push a prediction into the history; `running` [B] names the rows that took the step, None: all."""
        kept = now if self.needs.logits else now.without_logits()
        past = (kept, *self.past)[: self.needs.lookback]
        # a row that idles now may run in a later block, which only a history that spans blocks will see
        if running is not None and self.needs.span:
            merged = tuple(new.where(running, old) for new, old in zip(past, self.past, strict=False))
            past = merged + past[len(merged) :]
            carry = _merge(running, carry, self.carry)
        took = torch.ones_like(now.top1[:, 0]) if running is None else running.long()
        self.past, self.carry = past, carry
        self.seen = took if self.seen is None else self.seen + took


def _merge(rows: Tensor, new: Tensor | None, old: Tensor | None) -> Tensor | None:
    """`new` [B, ...] on the given rows, `old` on the rest."""
    if new is None or old is None:
        return new
    return torch.where(rows.view(-1, *[1] * (new.ndim - 1)), new, old)


def _read(*flags: Tensor) -> list[bool]:
    """Scalar flags from the device in one read."""
    read: list[bool] = torch.stack(flags).tolist()
    return read


def _broken(now: Prediction, view: _View) -> Tensor:
    """Running rows with a NaN or +inf logit, or nothing but -inf, [B] bool."""
    return view.running & ~now.lse.isfinite().all(-1)


def _broken_logits(broken: Tensor, step: int) -> str:
    rows = ", ".join(str(row) for row, bad in enumerate(broken.tolist()) if bad)
    return (
        f"the model returned NaN or infinite logits at step {step}, row {rows}; check its weights and dtype"
    )
