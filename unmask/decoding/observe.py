"""Ask a sampler: build its Observation, and confine its Decision to the rows and columns that may change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.draw import Selection
from unmask.decoding.rows import History
from unmask.decoding.transfer import widest_float
from unmask.decoding.turns import Clock, unpack
from unmask.errors import FieldError
from unmask.types import Decision, Observation, Prediction, Sampler, ScheduleName


@dataclass(frozen=True, slots=True)
class Context:
    """The settings of a run that a decision depends on."""

    schedule: ScheduleName
    selection: Selection
    blockwise: bool
    eos_ids: tuple[int, ...]


class Scene(NamedTuple):
    """The rows of one step: their state, and what they may change."""

    masked: Tensor  # [B, W] bool
    active: Tensor  # [B, W] bool
    running: Tensor  # [B] bool
    started: Tensor  # [B] masks when the block began, see Turn
    clock: Clock | Tensor  # a Clock, or its numbers packed as [1 or B, 4] float64
    draws: Tensor | None = None  # [B, W] uniform in (0, 1), if tokens are sampled
    noise: Tensor | None = None  # [B, W] uniform in (0, 1), if the sampler needs them
    tokens: Tensor | None = None  # [B, W] the window's tokens, if the sampler may revoke
    written: Tensor | None = None  # [B, W] bool, columns that may be revoked
    urgent: Tensor | None = None  # [B, W] bool, columns that must progress


class Outcome(NamedTuple):
    """A decision, confined to what may change, and its effect."""

    decision: Decision  # with the `tokens` to write
    changed: Tensor  # [B] bool, rows of the canvas that it changes
    broken: Tensor  # [B] bool, rows whose logits are not finite


def decide(
    sampler: Sampler, prediction: Prediction, history: History, scene: Scene, context: Context
) -> Outcome:
    """Ask the sampler which positions to commit."""
    obs = observe(sampler, prediction, history, scene, context)
    decision = sampler.decide(obs)
    check_decision(decision, sampler, scene.masked.shape)
    if scene.urgent is not None:
        decision = _progress(sampler, obs, decision, scene.urgent)
    # a sampler that sees raw logits may choose tokens that do not fit
    own = decision.tokens is not None and prediction.fitting is None
    written = decision.tokens if own else obs.drawn
    confined = replace(
        decision, commit=decision.commit & scene.masked & scene.running[:, None], tokens=written
    )
    if scene.written is not None:
        confined = _confine_revocations(confined, scene.written & scene.running[:, None])
    return outcome_of(confined, prediction, scene.running)


def observe(
    sampler: Sampler, prediction: Prediction, history: History, scene: Scene, context: Context
) -> Observation:
    """Return everything that the sampler sees in this step."""
    masks, nothing = scene.active.sum(-1), torch.zeros_like(scene.started)
    source = prediction.fitting or prediction
    step, budget, progress, rate = unpack(scene.clock) if isinstance(scene.clock, Tensor) else scene.clock
    rate = nothing.float() + rate
    if context.schedule == "dream":
        quota = (masks * rate).floor().long()
    elif context.schedule == "remaining":
        quota = (masks * rate.to(widest_float(rate.device))).round().long()
    else:
        if sampler.needs.revoke:  # masks may return, so spread those left over the steps left
            quota = -(-masks // (budget - step))
        else:  # as in LLaDA: equal parts, with the remainder in the first steps
            quota = scene.started // budget + (step < scene.started % budget)
        rate = quota / masks.clamp(min=1)
    return Observation(
        now=prediction,
        past=history.past,
        seen=nothing if history.seen is None else history.seen,
        drawn=source.top1 if scene.draws is None else context.selection.draw(source, scene.draws),
        masked=scene.masked,
        active=scene.active,
        quota=quota,
        rate=rate,
        step=nothing + step,
        progress=nothing.float() + progress,
        carry=history.carry,
        noise=scene.noise,
        blockwise=context.blockwise,
        eos_ids=context.eos_ids,
        tokens=scene.tokens,
        written=scene.written,
    )


def fill(prediction: Prediction, scene: Scene) -> Outcome:
    """Commit the argmax of every active position, because the budget is spent."""
    nothing = torch.zeros_like(scene.active)
    tokens = (prediction.fitting or prediction).top1
    decision = Decision(scene.active, nothing, torch.zeros_like(scene.running), tokens=tokens)
    return outcome_of(decision, prediction, scene.running)


def outcome_of(decision: Decision, prediction: Prediction, running: Tensor) -> Outcome:
    """Find the rows that a decision changes, and running rows with NaN, +inf or only -inf logits."""
    changes = decision.commit
    for more in (decision.revoke, decision.rewrite):
        changes = changes if more is None else changes | more
    return Outcome(decision, changes.any(-1), running & ~prediction.lse.isfinite().all(-1))


def _progress(sampler: Sampler, obs: Observation, decision: Decision, urgent: Tensor) -> Decision:
    """Make every row commit in its urgent columns [B, W].

    A row that commits nothing there commits what the sampler would choose if it had no other columns.
    """
    alone = sampler.decide(replace(obs, active=obs.active & urgent, masked=obs.masked & urgent))
    idle = ~(decision.commit & urgent).any(-1, keepdim=True)
    return replace(decision, commit=decision.commit | alone.commit & urgent & idle)


def _confine_revocations(decision: Decision, written: Tensor) -> Decision:
    """Revoke and rewrite written columns only, and never both in the same place."""
    revoke = None if decision.revoke is None else decision.revoke & written
    rewrite = None if decision.rewrite is None else decision.rewrite & written
    if revoke is not None and rewrite is not None:
        rewrite = rewrite & ~revoke
    return replace(decision, revoke=revoke, rewrite=rewrite)


def check_decision(decision: object, sampler: Sampler, window: torch.Size) -> None:
    """Raise if a decision does not fit its window; values are not read."""
    where = f"{type(sampler).__name__}.decide"
    if not isinstance(decision, Decision):
        raise FieldError(where, decision, "must return a Decision")
    for name, shape, dtype in (
        ("commit", window, torch.bool),
        ("eligible", window, torch.bool),
        ("forced", window[:1], torch.bool),
        ("tokens", window, torch.int64),
        ("revoke", window, torch.bool),
        ("rewrite", window, torch.bool),
        ("open", window[:1], torch.bool),
    ):
        part = getattr(decision, name)
        if part is None and name in ("tokens", "revoke", "rewrite", "open"):
            continue
        if name in ("revoke", "rewrite", "open") and not sampler.needs.revoke:
            remedy = "ask for it with Needs(revoke=True)"
            raise FieldError(f"{where}: {name}", "a tensor", "must be None", remedy)
        if not isinstance(part, Tensor) or part.shape != shape or part.dtype != dtype:
            problem = f"must be a {dtype} tensor of shape {list(shape)}"
            raise FieldError(f"Decision.{name}", part, problem, where=where)
