"""Each signal alone against the joint rule."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.experiments import stats
from unmask.experiments.ablation import FULL, ablation, points
from unmask.experiments.grid import Cells, short
from unmask.experiments.methods import SINGLE
from unmask.experiments.report import Finding, above, below

CONFIDENCE = "Confidence only"
COLLAPSE = -10.0  # points


def _findings(cells: Cells) -> Sequence[Finding]:
    model = short(cells.model)
    others = [label for label in SINGLE if label != CONFIDENCE]
    strongest = [
        above(
            f"{model}: {CONFIDENCE} is more accurate than {label}",
            stats.difference(cells.rows[label], cells.rows[CONFIDENCE]),
        )
        for label in others
    ]
    collapse = [
        below(f"{model}: {label} collapses, {-COLLAPSE:g} points and more below full LESS", lost, COLLAPSE)
        for label, lost in ((label, points(cells, label)) for label in ("JSD only", "Persistence only"))
    ]
    saved = stats.share(cells.rows[FULL], cells.rows[CONFIDENCE], "forwards")
    return (
        *strongest,
        *collapse,
        *(below(f"{model}: {label} is worse than full LESS", points(cells, label)) for label in SINGLE),
        below(f"{model}: {CONFIDENCE} needs fewer forwards than full LESS", saved, 100, unit="% of its"),
    )


EXPERIMENT = ablation(
    "single-signal",
    "Single signals",
    "Only one signal decides, under the same policy and at one threshold for all tasks: c = 0.75, d = 0.040, "
    "P = 2, margin 0.20.",
    SINGLE,
    _findings,
)
