"""The joint rule without one of its signals."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.experiments import methods, stats
from unmask.experiments.ablation import FULL, ablation, points
from unmask.experiments.grid import Cells, short
from unmask.experiments.methods import DROP
from unmask.experiments.report import Finding, above, below

CONFIDENCE = "LESS without confidence"
SAFEGUARDS = [label for label in DROP if label != CONFIDENCE]


def _findings(cells: Cells) -> Sequence[Finding]:
    model = short(cells.model)
    return [
        *(below(f"{model}: {label} is worse than full LESS", points(cells, label)) for label in DROP),
        *(
            below(
                f"{model}: {CONFIDENCE} is worse than {label}",
                stats.difference(cells.rows[label], cells.rows[CONFIDENCE]),
            )
            for label in SAFEGUARDS
        ),
        *(_price(cells, label) for label in SAFEGUARDS),
        *(_worth(cells, label, task) for label in SAFEGUARDS for task in cells.tasks),
    ]


def _price(cells: Cells, label: str) -> Finding:
    """Test whether a signal costs forwards."""
    more = stats.share(cells.rows[label], cells.rows[FULL], "forwards")
    return above(f"{short(cells.model)}: {FULL} needs more forwards than {label}", more, 100, unit="% of its")


def _worth(cells: Cells, label: str, task: str) -> Finding:
    """Test on one task whether full LESS is more accurate than the rule without a signal."""
    without, full = {task: cells.rows[label][task]}, {task: cells.rows[FULL][task]}
    forwards = stats.share(without, full, "forwards").shown(0)
    what = f"{short(cells.model)}, {methods.title(task)}: {FULL} is more accurate than {label}"
    return above(what, stats.difference(without, full), unit=f"points, for {forwards} % of its forwards")


EXPERIMENT = ablation(
    "drop-one",
    "Drop one signal",
    "One signal is switched off. If confidence is the primary gate, its row falls by far the most; if "
    "persistence and JSD are safeguards, their rows fall too. The findings per task show where these two "
    "are worth their steps.",
    DROP,
    _findings,
)
