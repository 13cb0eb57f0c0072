"""Calibrate without labels: would a bar on confidence have written the tokens of the careful rule?

The careful rule commits only the first mask, one token per forward. Each of its steps also shows the tokens
that a bar on confidence would have committed early. The bar changes a text if one of these tokens differs
from the token that the careful rule finally wrote there. One careful run tests every bar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.decoding.canvas import is_any
from unmask.errors import FieldError, probability
from unmask.evals.significance import wilson
from unmask.samplers.first_mask import FirstMask
from unmask.samplers.policies import frontier
from unmask.samplers.presets import Preset
from unmask.text.config import GenerationConfig
from unmask.text.display import plural
from unmask.text.generate import prepare
from unmask.text.prompts import Prompt, TextModel
from unmask.types import Step

BARS = (0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995)
CAREFUL = FirstMask(min_confidence=1.0)
MAX_CHANGED = 0.05
BATCH = 8


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a bar on confidence agrees with the careful rule.

    Attributes:
        bar: Minimum confidence.
        changed: Number of texts with a token that the careful rule would not have written.
        texts: Number of all texts.
        early: Share of the tokens that the bar would have committed early.
        wrong: Share of the early tokens that the careful rule would not have written.
    """

    bar: float
    changed: int
    texts: int
    early: float
    wrong: float

    @property
    def rate(self) -> float:
        """The share of texts that would change."""
        return self.changed / self.texts

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share."""
        return wilson(self.changed, self.texts)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of one text: its tokens, and per bar the early tokens and the wrong ones of them, [C] each."""

    early: Tensor
    wrong: Tensor
    tokens: int


def measure(
    model: TextModel,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    *,
    bars: Sequence[float] = BARS,
    batch_size: int = BATCH,
    watch: Callable[[int], None] | None = None,
) -> list[Agreement]:
    """Decode the prompts with the careful rule, and return the agreement of every bar."""
    if not prompts:
        raise FieldError("prompts", prompts, "must hold at least one prompt")
    tallies: list[Tally] = []
    for first in range(0, len(prompts), batch_size):
        tallies += _decode(model, prompts[first : first + batch_size], config, bars)
        if watch is not None:
            watch(len(tallies))
    early = torch.stack([one.early for one in tallies])
    wrong = torch.stack([one.wrong for one in tallies])
    tokens = sum(one.tokens for one in tallies)
    return [
        Agreement(
            bar=bar,
            changed=int((wrong[:, place] > 0).sum()),
            texts=len(tallies),
            early=int(early[:, place].sum()) / max(1, tokens),
            wrong=int(wrong[:, place].sum()) / max(1, int(early[:, place].sum())),
        )
        for place, bar in enumerate(bars)
    ]


def _decode(
    model: TextModel, prompts: Sequence[Prompt], config: GenerationConfig, bars: Sequence[float]
) -> list[Tally]:
    """Run the careful rule on a batch, and compare what each bar would have written with its texts."""
    run = prepare(model, prompts, CAREFUL, config)
    tokens, ends = run.canvas.tokens, model.info.eos_ids
    ahead = torch.full((len(bars), *tokens.shape), -1, device=tokens.device)
    limits = torch.tensor(bars, device=tokens.device)[:, None, None]
    for step in run.steps:
        if not step.leftover:
            _note(ahead, tokens, step, limits, mask_id=model.info.mask_id, ends=ends)
        tokens = step.tokens
    generated, ahead = tokens[:, run.canvas.start :], ahead[:, :, run.canvas.start :]
    closed = (is_any(generated, ends) & (generated != model.info.mask_id)).cumsum(-1) > 0
    final = torch.where(closed, ends[0], generated) if ends else generated
    early = ahead >= 0
    wrong = early & (ahead != final)
    lengths = (~closed).sum(-1).tolist()
    return [
        Tally(early[:, row].sum(-1).cpu(), wrong[:, row].sum(-1).cpu(), length)
        for row, length in enumerate(lengths)
    ]


def _note(
    ahead: Tensor, before: Tensor, step: Step, limits: Tensor, *, mask_id: int, ends: Sequence[int]
) -> None:
    """Note the token of every position that reaches a bar for the first time before it is the first mask."""
    masked = (before[:, step.window] == mask_id) & step.running[:, None]
    waiting = masked & ~frontier(masked) & ~is_any(step.drawn, ends)
    part = ahead[:, :, step.window]
    reached = waiting & (step.decision.signals["confidence"] >= limits) & (part < 0)
    part.copy_(torch.where(reached, step.drawn, part))


def choose(agreements: Sequence[Agreement], max_changed: float = MAX_CHANGED) -> Agreement:
    """Return the lowest bar that, like all above, changes at most this share of texts; else the highest."""
    probability("max_changed", max_changed)
    ordered = sorted(agreements, key=lambda one: -one.bar)
    chosen = ordered[0]
    for one in ordered:
        if one.rate > max_changed:
            break
        chosen = one
    return chosen


def preset(chosen: Agreement, model: str, max_changed: float) -> Preset:
    """Return the chosen bar as a preset of `first-mask`."""
    low, high = chosen.interval
    about = (
        f"calibrated without labels for {model}: {chosen.changed} of {plural(chosen.texts, 'text')} "
        f"({100 * chosen.rate:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f}) would change "
        f"against one token per forward; the bound is {100 * max_changed:g} %"
    )
    return Preset(sampler="first-mask", fields={"min_confidence": chosen.bar}, about=about)
