"""The settings of the loop, besides model, canvas, sampler and plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import torch

from unmask.decoding.bans import Bans
from unmask.decoding.canvas import Canvas
from unmask.decoding.draw import Selection
from unmask.errors import flag, id_tuple, one_of, whole
from unmask.types import ModelInfo, ScheduleName


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of the loop, besides model, canvas, sampler and plan.

    Use them with `decode` and `denoise`; `generate` makes them from a GenerationConfig.

    Attributes:
        selection: The rule that chooses a token at each position.
        schedule: The fixed schedule that sets the quota, "linear", "dream", "block" or "remaining". None
            means that of the model family.
        banned_ids: Tokens that are never written. None means the mask token.
        min_new_tokens: No end token before this many generated columns, >= 0.
        stop_at_eos: A row is done when there is no mask to the left of its first end token.
        stop_at_block_end: With stop_at_eos, a row is done only when the block of that end token is done too.
        fill_leftovers: Masks that remain when the budget is spent get the argmax of one more forward.
        reuse: Use the last prediction again for an unchanged canvas, without a new forward.
    """

    selection: Selection = field(default_factory=Selection)
    schedule: ScheduleName | None = None
    banned_ids: tuple[int, ...] | None = None
    min_new_tokens: int = 0
    stop_at_eos: bool = True
    stop_at_block_end: bool = False
    fill_leftovers: bool = True
    reuse: bool = True

    def __post_init__(self) -> None:
        whole("min_new_tokens", self.min_new_tokens, 0)
        for name in ("stop_at_eos", "stop_at_block_end", "fill_leftovers", "reuse"):
            flag(name, getattr(self, name))
        if self.banned_ids is not None:
            object.__setattr__(self, "banned_ids", id_tuple("banned_ids", self.banned_ids))
        if self.schedule is not None:
            one_of("schedule", self.schedule, get_args(ScheduleName))

    def bans(self, info: ModelInfo, canvas: Canvas) -> Bans:
        """Return which tokens are banned from which columns of the canvas."""
        ids = (info.mask_id,) if self.banned_ids is None else self.banned_ids
        if not self.min_new_tokens or not info.eos_ids:
            return Bans(ids)
        columns = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
        first = canvas.start if canvas.lead is None else canvas.start + canvas.lead[:, None]
        return Bans(ids, info.eos_ids, columns[None] < first + self.min_new_tokens)


DEFAULTS = Options()
