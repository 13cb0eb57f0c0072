"""Speculative: the steps of another sampler in fewer forwards of more rows (FreeDave, arXiv:2510.00294)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from unmask.errors import flag, one_of, whole
from unmask.samplers.wrapper import Wrapper
from unmask.types import Decision, Needs, Observation, Speculation

Guess = Literal["surest", "first"]
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class Speculative(Wrapper):
    """Run guesses of the next canvases beside the real one; a step whose canvas was guessed needs no forward.

    Use it for one request at a time on a GPU, while a forward of several rows costs hardly more than one of a
    single row.

    Every decision is the inner sampler's, on the prediction of the real canvas: tokens and steps are the
    same.

    Attributes:
        sampler: The sampler that decides every step.
        rows: Rows per text in a forward, 2 to 64: the real canvas and guesses of the next ones.
        guess: The masks that a guess fills: "surest" (the most confident) or "first".
        partial: Whether to commit only the guessed part of a decision (FreeDave++). Steps may then differ.
    """

    rows: int = 4
    guess: Guess = "surest"
    partial: bool = False

    def __post_init__(self) -> None:
        Wrapper.__post_init__(self)
        whole("rows", self.rows, 2, MAX_ROWS)
        one_of("guess", self.guess, get_args(Guess))
        flag("partial", self.partial)

    @property
    def needs(self) -> Needs:
        speculation = Speculation(rows=self.rows, guess=self.guess, partial=self.partial)
        return replace(self.sampler.needs, speculation=speculation)

    def decide(self, obs: Observation) -> Decision:
        return self.sampler.decide(obs)
