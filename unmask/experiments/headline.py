"""The main table: Base, Prophet, KLASS and LESS on every task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unmask.experiments import drawing, stats
from unmask.experiments.experiment import Experiment, Results
from unmask.experiments.grid import Cells, Choose, collect, declare, numbers, short, table
from unmask.experiments.lab import Lab
from unmask.experiments.methods import paper_methods
from unmask.experiments.report import Finding, Picture, Report, Table, above, below, flat
from unmask.experiments.runs import Run
from unmask.experiments.side_by_side import side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STOPPED = "Base, stops at the end"
ABOUT = (
    "Accuracy and reverse steps of each method; the mean is the category-macro mean over math, code and "
    "knowledge. Base is counted as the paper counts it, with its whole budget; what it decodes behind the "
    "end of a text cannot change the text, so the same records give the row that stops there, as all other "
    "methods do."
)


def table_runs(choose: Choose, lab: Lab) -> Sequence[Run]:
    """The runs of a table with these methods."""
    return list(declare(lab, choose).values())


def table_report(name: str, choose: Choose, lab: Lab, results: Results) -> Report:
    """The table, its figure and its findings."""
    found = [_with_full_base(cells) for cells in collect(lab, declare(lab, choose), results)]
    return Report(
        tables=flat([_tables(name, cells) for cells in found]),
        pictures=(_picture(name, found),),
        findings=flat([_findings(cells) for cells in found]),
    )


def _with_full_base(cells: Cells) -> Cells:
    """Base with its whole budget first, then Base as it ran."""
    stopped = cells.rows["Base"]
    full = {task: outcome.spending_all() for task, outcome in stopped.items()}
    return Cells(cells.model, {**cells.rows, "Base": full, STOPPED: stopped})


def _tables(name: str, cells: Cells) -> tuple[Table, ...]:
    title = f"{short(cells.model)}: accuracy / steps"
    paper = {label: label for label in ("Base", "Prophet", "KLASS", "LESS")}
    return (
        table(cells, name, title, against="Base"),
        _savings(name, cells),
        *side_by_side(cells, "headline", rows=paper),
    )


def _savings(name: str, cells: Cells) -> Table:
    """Steps and forwards saved against both ways to count Base."""
    rows, header = [], ("method", "steps", "fewer steps than Base, %", f"fewer forwards than {STOPPED}, %")
    for label, outcomes in cells.rows.items():
        steps, forwards = stats.steps(outcomes), stats.forwards(outcomes)
        full, stopped = stats.steps(cells.rows["Base"]), stats.forwards(cells.rows[STOPPED])
        saved = 100 * (1 - steps.value / full.value)
        rows.append(
            (label, steps.shown(), f"{saved:.1f}", f"{100 * (1 - forwards.value / stopped.value):.1f}")
        )
    return Table(
        f"{name}-savings-{short(cells.model)}",
        f"{short(cells.model)}: steps saved",
        header,
        tuple(rows),
        tuple(numbers(cells)),
    )


def _picture(name: str, found: Sequence[Cells]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(found))
        for place, cells in zip(axes, found, strict=True):
            values = {
                label: (stats.forwards(outcomes), stats.accuracy(outcomes))
                for label, outcomes in cells.rows.items()
            }
            drawing.points(place, values, title=short(cells.model))
        drawing.legend(figure, axes[0], columns=3)
        return figure

    return Picture(
        name, "Macro accuracy over forward passes, with 95 % intervals; up and left is better.", draw
    )


def _findings(cells: Cells) -> tuple[Finding, ...]:
    """What the paper's text says of this table."""
    less, base, model = cells.rows["LESS"], cells.rows["Base"], short(cells.model)
    share = stats.steps(less).scaled(100 / stats.steps(base).value)
    saved = stats.Estimate(100 - share.value, 100 - share.high, 100 - share.low)
    ratio = stats.forwards(less).scaled(100 / stats.forwards(cells.rows[STOPPED]).value)
    rivals = [
        above(
            f"{model}: LESS is more accurate than {name}",
            stats.difference(cells.rows[name], less),
        )
        for name in ("Base", "Prophet", "KLASS")
    ]
    return (
        *rivals,
        above(f"{model}: LESS takes at least 50 % fewer steps than Base's budget", saved, 50, unit="%"),
        below(
            f"{model}: LESS needs fewer forwards than a Base that stops at the end",
            ratio,
            100,
            unit="% of its",
        ),
    )


EXPERIMENT = Experiment(
    name="headline",
    title="The main table",
    about=ABOUT,
    runs=lambda lab: table_runs(paper_methods, lab),
    build=lambda lab, results: table_report("headline", paper_methods, lab, results),
)
