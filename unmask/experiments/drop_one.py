"""The joint rule without one of its signals."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.experiments.ablation import ablation, points
from unmask.experiments.grid import Cells, short
from unmask.experiments.methods import DROP
from unmask.experiments.report import Finding, below


def _findings(cells: Cells) -> Sequence[Finding]:
    model = short(cells.model)
    return [below(f"{model}: {label} is worse than full LESS", points(cells, label)) for label in DROP]


EXPERIMENT = ablation(
    "drop-one",
    "Drop one signal",
    "One signal is switched off. If confidence is the primary gate, its row falls by far the most; if "
    "persistence and JSD are safeguards, their rows fall too.",
    DROP,
    _findings,
)
