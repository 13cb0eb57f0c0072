"""Prophet: decode everything at once when the top-2 logit gap is wide enough (arXiv:2508.19982).

With `answer_start` it is the official LLaDA form: the mean gap over a fixed answer region, cut at the end of
the generation. Otherwise it is the full-sequence form: the mean gap over all masked positions, provided that
no masked argmax has changed since the last step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmask.errors import FieldError, at_least, whole
from unmask.samplers import signals
from unmask.samplers.base import Base
from unmask.types import Decision, Needs, Observation

ANSWER_LENGTH = 5  # fixed in the released code, which ignores its own option


@dataclass(frozen=True, slots=True, kw_only=True)
class Prophet:
    """Commit as `base` does until the top-2 logits are far enough apart, then everything at once.

    Use it to compare with Prophet, or for answers of a known place and length. It looks at the whole
    generation, so the cache `dual` does not fit it.

    Attributes:
        early: Mean gap between the two largest logits that ends the run in the first third of the budget; >=
            0.
        mid: The same in the second third.
        late: The same in the last third.
        answer_start: Offset of the answer in the generation; only its gap counts. None means that all masks
            count, and that no masked winner may have changed in the step.
        answer_length: Columns of the answer, >= 1; only with answer_start.
        base: The fixed schedule that decodes until then.
    """

    early: float = 7.5
    mid: float = 5.0
    late: float = 2.5
    answer_start: int | None = None
    answer_length: int = ANSWER_LENGTH
    base: Base = field(default_factory=Base)

    def __post_init__(self) -> None:
        for name in ("early", "mid", "late"):
            at_least(name, getattr(self, name), 0)
        if not isinstance(self.base, Base):
            raise FieldError("base", self.base, "must be a Base sampler")
        if self.answer_start is not None:
            whole("answer_start", self.answer_start, 0)
        whole("answer_length", self.answer_length, 1)

    @property
    def needs(self) -> Needs:
        return Needs(
            lookback=int(self.answer_start is None),
            span=True,
            noise=self.base.needs.noise,
            min_length=1 if self.answer_start is None else self.answer_start + 1,
        )

    def decide(self, obs: Observation) -> Decision:
        gap, settled = self.answer_gap(obs) if self.answer_start is not None else self.masked_gap(obs)
        exits = settled & (gap >= self.needed(obs.progress))
        base = self.base.decide(obs)
        commit = torch.where(exits[:, None], obs.masked, base.commit)
        tokens = torch.where(exits[:, None], obs.now.top1, obs.drawn)
        shown = {**base.signals, "gap": gap[:, None].expand_as(obs.drawn)}
        return Decision(commit, commit, base.forced, tokens=tokens, signals=shown)

    def answer_gap(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Return the mean gap over the answer region, decoded positions included, and True, [B] each."""
        assert self.answer_start is not None
        gaps, end = signals.logit_margin(obs.now), self.answer_start + self.answer_length
        if self.answer_start >= gaps.shape[-1]:
            problem = f"must lie inside the generation of {gaps.shape[-1]} tokens"
            raise FieldError("answer_start", self.answer_start, problem, "lower it, or generate more tokens")
        return gaps[:, self.answer_start : end].mean(-1), torch.ones_like(obs.seen, dtype=torch.bool)

    def masked_gap(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Return the mean gap over all masked positions, and whether no masked argmax changed, [B] each."""
        gaps = torch.where(obs.masked, signals.logit_margin(obs.now), 0)
        same = signals.persistence(obs, 2) | ~obs.masked
        return gaps.sum(-1) / obs.masked.sum(-1).clamp(min=1), same.all(-1)

    def needed(self, progress: Tensor) -> Tensor:
        """Return the gap that a row needs at this share of its budget, [B]."""
        first, second = (0.33, 0.67) if self.answer_start is not None else (1 / 3, 2 / 3)
        late = torch.where(progress < second, self.mid, torch.full_like(progress, self.late))
        return torch.where(progress < first, torch.full_like(progress, self.early), late)
