"""What an experiment is: runs to make, and a report to make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from unmask.experiments.report import Report
from unmask.experiments.runs import Outcome, Run

if TYPE_CHECKING:
    from unmask.experiments.lab import Lab

Results: TypeAlias = Mapping[Run, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One table or figure."""

    name: str
    title: str
    about: str  # what it shows, and how it differs from the paper's
    runs: Callable[[Lab], Sequence[Run]]
    build: Callable[[Lab, Results], Report]
