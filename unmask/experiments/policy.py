"""Which of the eligible positions are committed."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.experiments import stats
from unmask.experiments.ablation import ablation, points
from unmask.experiments.grid import Cells, short
from unmask.experiments.methods import POLICIES
from unmask.experiments.report import Finding, below


def _findings(cells: Cells) -> Sequence[Finding]:
    model, first, every = short(cells.model), "Frontier first", "All eligible"
    parallel = stats.difference(cells.rows[first], cells.rows[every])
    ratio = stats.forwards(cells.rows[every]).scaled(100 / stats.forwards(cells.rows[first]).value)
    return (
        below(f"{model}: committing all eligible positions is less accurate than frontier first", parallel),
        below(f"{model}: it needs fewer forwards", ratio, 100, unit="% of its"),
        below(f"{model}: frontier first is less accurate than full LESS", points(cells, first)),
    )


EXPERIMENT = ablation(
    "policy",
    "Unmasking policy",
    "The same rule with three policies, here inside blocks too. Full LESS takes the run from the frontier on "
    "a full sequence and all eligible positions inside a block. The paper tunes thresholds per task here; "
    "this table keeps the global ones.",
    POLICIES,
    _findings,
)
