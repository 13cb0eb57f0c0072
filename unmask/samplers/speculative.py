"""Speculative: the steps of another sampler in fewer forwards of more rows (FreeDave, arXiv:2510.00294)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from unmask.errors import flag, one_of, whole
from unmask.samplers.base import Base
from unmask.types import Decision, Needs, Observation, Sampler, Speculation

ORDERS = ("surest", "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculative:
    """Run guesses of the next canvases beside the real one; a step whose canvas was guessed needs no forward.

    Every decision is the inner sampler's, on the prediction of the real canvas: tokens and steps are the
    same. It pays while a forward of several rows costs hardly more than one of a single row.
    """

    sampler: Sampler = field(default_factory=Base)
    rows: int = 4  # of a forward for each row: the real canvas and guesses of the next ones
    order: Literal["surest", "first"] = "surest"  # of the masks that guesses fill
    partial: bool = False  # take a guessed part of a decision alone (FreeDave++); steps may then differ

    def __post_init__(self) -> None:
        whole("rows", self.rows, 2)
        one_of("order", self.order, ORDERS)
        flag("partial", self.partial)

    @property
    def needs(self) -> Needs:
        speculation = Speculation(rows=self.rows, order=self.order, partial=self.partial)
        return replace(self.sampler.needs, speculation=speculation)

    def decide(self, obs: Observation) -> Decision:
        return self.sampler.decide(obs)
