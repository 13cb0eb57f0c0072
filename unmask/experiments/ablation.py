"""Ablations: a table of variants against full LESS, with paired differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from unmask.experiments import drawing, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, always, declare, short, table
from unmask.experiments.lab import Lab
from unmask.experiments.methods import HARD
from unmask.experiments.report import Finding, Picture, Report, flat
from unmask.experiments.side_by_side import side_by_side
from unmask.samplers import SAMPLERS
from unmask.types import Sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL = "Full LESS"


def ablation(
    name: str,
    title: str,
    about: str,
    variants: Mapping[str, Sampler],
    findings: Callable[[Cells], Sequence[Finding]],
) -> Experiment:
    """Return the experiment that compares variants with full LESS on the math and code tasks."""
    samplers = {**variants, FULL: SAMPLERS["less"]}

    def build(lab: Lab, all_cells: Sequence[Cells]) -> Report:
        titles = [f"{short(cells.model)}: accuracy / steps (points to {FULL})" for cells in all_cells]
        return Report(
            tables=flat(
                [
                    (
                        table(cells, name, heading, against=FULL),
                        *side_by_side(cells, name, rows={label: label for label in samplers}),
                    )
                    for cells, heading in zip(all_cells, titles, strict=True)
                ]
            ),
            pictures=(picture(name, all_cells),) if all_cells else (),
            findings=flat([findings(cells) for cells in all_cells]),
        )

    return Experiment(
        name=name,
        title=title,
        about=about,
        runs=lambda lab: declare(lab, always(samplers), HARD),
        build=build,
    )


def picture(name: str, all_cells: Sequence[Cells], against: str = FULL) -> Picture:
    """Return a bar chart of the differences to `against`."""

    def draw() -> Figure:
        labels = [label for label in all_cells[0].rows if label != against]
        figure, axes = drawing.panels(len(all_cells), height=1.3 + 0.38 * len(labels), width=4.8)
        for panel, cells in zip(axes, all_cells, strict=True):
            values = {label: points(cells, label, against) for label in labels}
            tint = drawing.light(drawing.colour("LESS"))
            drawing.bars(panel, values, [tint] * len(values), label=f"points to {against}", zero=True)
            drawing.title(panel, short(cells.model), _message(values))
        return figure

    return Picture(name, f"Macro accuracy against {against}, paired, with 95 % intervals.", draw)


def _message(values: Mapping[str, stats.Estimate]) -> str:
    low, *_, high = sorted(values, key=lambda label: values[label].value)
    ends = (("lowest", low), ("highest", high))
    return "\n".join(f"{end}: {label}, {values[label].shown(sign=True)}" for end, label in ends)


def points(cells: Cells, label: str, against: str = FULL) -> stats.Estimate:
    """Return the macro accuracy of a variant minus that of `against`, in points."""
    return stats.difference(cells.rows[against], cells.rows[label])
