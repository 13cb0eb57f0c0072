"""What a step saw at every position of its window, for readers that ask to be shown it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from unmask.decoding.summary import summarize
from unmask.samplers import signals
from unmask.types import Decision, Prediction

KEPT = ("confidence", "persistence", "jsd")


class Look(NamedTuple):
    """One row of a step, on the CPU."""

    seen: Prediction  # [1, W], its candidates and no logits
    signals: Mapping[str, Tensor]  # [W] each, of KEPT those that there are

    @property
    def candidates(self) -> list[list[tuple[int, float]]]:
        """Token and probability of the best candidates of every position, best first."""
        ids, chances = self.seen.top_ids[0].tolist(), self.seen.top_probs[0].tolist()
        return [list(zip(*pair, strict=True)) for pair in zip(ids, chances, strict=True)]


def look(now: Prediction, decision: Decision, row: int, *, candidates: int, before: Look | None) -> Look:
    """What row number `row` saw; `before` is its look one step earlier in the same history."""
    seen = summarize(now.full_logits[row : row + 1], candidates).without_logits()
    seen = Prediction(seen.top_ids.cpu(), seen.top_logits.cpu(), seen.lse.cpu())
    told = {name: value[row].cpu() for name, value in decision.signals.items() if name in KEPT}
    told["confidence"] = signals.confidence(seen)[0]  # a base may rank by another number under this name
    if "jsd" not in told and before is not None and before.seen.lse.shape == seen.lse.shape:
        told["jsd"] = signals.jsd(seen, before.seen, exact=False)[0]
    return Look(seen, told)
