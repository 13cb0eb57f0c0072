"""The candidates and signals of one step, for readers that ask to see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from unmask.decoding.summary import summarize
from unmask.samplers import signals
from unmask.types import Decision, Prediction


class Look(NamedTuple):
    """One row of a step, on the CPU."""

    prediction: Prediction  # [1, W], candidates without logits
    signals: Mapping[str, Tensor]  # [W] each, by name

    def with_constraint(self, committed: Decision) -> Look:
        """Add the signal for commits that the constraint refused; it exists only after the commit."""
        held = committed.signals.get("constraint")
        return self if held is None else self._replace(signals={**self.signals, "constraint": held[0].cpu()})

    @property
    def candidates(self) -> list[list[tuple[int, float]]]:
        """Tokens and probabilities of the candidates of every position, best first."""
        ids, probabilities = self.prediction.top_ids[0].tolist(), self.prediction.top_probs[0].tolist()
        return [list(zip(*pair, strict=True)) for pair in zip(ids, probabilities, strict=True)]


def look(now: Prediction, decision: Decision, row: int, *, candidates: int, before: Look | None) -> Look:
    """Return the candidates of a row, and the signals that its sampler names.

    If the sampler names no confidence or JSD, they are computed from the candidates. `before` is the look of
    the same row one step earlier in the same history.
    """
    top = summarize(now.full_logits[row : row + 1], candidates).without_logits()
    top = Prediction(top.top_ids.cpu(), top.top_logits.cpu(), top.lse.cpu())
    named = {name: values[row].cpu() for name, values in decision.signals.items()}
    named.setdefault("confidence", signals.confidence(top)[0])
    if "jsd" not in named and before is not None and before.prediction.lse.shape == top.lse.shape:
        named["jsd"] = signals.jsd(top, before.prediction, exact=False)[0]
    return Look(top, named)
