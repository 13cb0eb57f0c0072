"""Policies: which of the eligible positions are committed."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.experiments import stats
from unmask.experiments.ablation import ablation, points
from unmask.experiments.grid import Cells, short
from unmask.experiments.methods import POLICIES
from unmask.experiments.report import Finding, below


def _findings(cells: Cells) -> Sequence[Finding]:
    model, (first, run, every) = short(cells.model), POLICIES
    results = []
    for more, fewer in ((run, first), (every, run), (every, first)):
        gap = stats.difference(cells.rows[fewer], cells.rows[more])
        cost = stats.share(cells.rows[fewer], cells.rows[more], "forwards")
        results += [
            below(f"{model}: {more} is less accurate than {fewer}", gap),
            below(f"{model}: {more} needs fewer forwards than {fewer}", cost, 100, unit="% of its"),
        ]
    return (*results, below(f"{model}: {first} is less accurate than full LESS", points(cells, first)))


EXPERIMENT = ablation(
    "policy",
    "Unmasking policy",
    "The same rule with three policies, also inside blocks. Full LESS commits the run from the frontier on "
    "a full sequence and all eligible positions inside a block. The paper tunes thresholds per task here; "
    "this table keeps the global ones.",
    POLICIES,
    _findings,
)
