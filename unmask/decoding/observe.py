"""What a sampler decides on some rows, and what comes of it; the loop and the server both ask it here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.checks import check_decision
from unmask.decoding.draw import NoiseSource, Selection
from unmask.decoding.plan import clock
from unmask.decoding.rows import Memory
from unmask.decoding.turns import View
from unmask.types import Decision, Observation, Prediction, Sampler, ScheduleName

Outcome = tuple[Tensor, Tensor]  # as `settle` has it


def decide(
    sampler: Sampler,
    now: Prediction,
    memory: Memory,
    view: View,
    started: Tensor,
    hand: Tensor,
    *,
    schedule: ScheduleName,
    selection: Selection,
    noise: NoiseSource,
    blockwise: bool,
    eos_ids: tuple[int, ...],
) -> tuple[Decision, Tensor]:
    """What a sampler decides on rows that stand here, and the tokens [B, W] that it writes."""
    width = view.masked.shape[-1]
    time = clock(hand, schedule, view.active.sum(-1), started)
    obs = Observation(
        now=now,
        past=memory.past,
        seen=torch.zeros_like(time.step) if memory.seen is None else memory.seen,
        drawn=now.top1 if selection.greedy else selection.draw(now, noise(view.running, width)),
        masked=view.masked,
        active=view.active,
        quota=time.quota,
        rate=time.rate,
        step=time.step,
        progress=time.progress,
        carry=memory.carry,
        noise=noise(view.running, width) if sampler.needs.noise else None,
        blockwise=blockwise,
        eos_ids=eos_ids,
    )
    decision = sampler.decide(obs)
    check_decision(decision, sampler, view)
    written = obs.drawn if decision.tokens is None else decision.tokens
    return replace(decision, commit=decision.commit & view.masked & view.running[:, None]), written


def decide_and_settle(
    sampler: Sampler, now: Prediction, memory: Memory, view: View, *given: Any, **settings: Any
) -> tuple[Decision, Tensor, Outcome]:
    """Both at once, for few kernels."""
    decision, written = decide(sampler, now, memory, view, *given, **settings)
    return decision, written, settle(decision.commit, now.lse, view.running)


def fill(now: Prediction, view: View) -> tuple[Decision, Tensor]:
    """Everything active, with the argmax of the canvas as it is."""
    return Decision(view.active, torch.zeros_like(view.active), torch.zeros_like(view.running)), now.top1


def settle(commit: Tensor, lse: Tensor, running: Tensor) -> Outcome:
    """Rows that committed anything; running rows with a NaN or +inf logit, or nothing but -inf; [B] each."""
    return commit.any(-1), running & ~lse.isfinite().all(-1)
