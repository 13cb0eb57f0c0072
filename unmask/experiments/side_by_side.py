"""The paper's figures, the released code and ours in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from unmask.experiments import methods, stats
from unmask.experiments.grid import Cells, short
from unmask.experiments.paper import paper_name, reported
from unmask.experiments.report import Table
from unmask.experiments.runs import Outcome

OURS, RELEASED = "LESS", "LESS, released code"  # labels of two rules of one sampler
MEAN = "mean"


class Figures(NamedTuple):
    """Accuracy in percent, and reverse steps."""

    accuracy: float
    steps: float

    def shown(self) -> str:
        """Return both as a cell."""
        return f"{self.accuracy:.1f} / {self.steps:.1f}"


Row = Mapping[str, Figures]  # figures by task, with their mean if all tasks of the paper are there


def side_by_side(cells: Cells, name: str, *, rows: Mapping[str, str]) -> tuple[Table, ...]:
    """Return a table of the paper, the released code and ours, or () if the paper lacks the model.

    `rows` maps our labels to the paper's. A cell is empty if the paper does not report it, or if the released
    code has no rule of its own for the method.
    """
    paper = reported(name, cells.model)
    if not paper:
        return ()
    released = _measured(cells.rows[RELEASED]) if RELEASED in cells.rows else {}
    lines, data = [], []
    for label in (label for label in cells.rows if label != RELEASED):
        printed = _printed(paper.get(rows.get(label, ""), {}), cells.tasks)
        theirs, ours = released if label == OURS else {}, _measured(cells.rows[label])
        for task in ours:
            three = (printed.get(task), theirs.get(task), ours[task])
            cell = tuple("" if one is None else one.shown() for one in three)
            gap = "" if three[0] is None else f"{ours[task].accuracy - three[0].accuracy:+.1f}"
            lines.append((label, MEAN if task == MEAN else methods.title(task), *cell, gap))
            items = sum(len(one.records) for key, one in cells.rows[label].items() if task in (key, MEAN))
            about = {"model": short(cells.model), "method": label, "task": task, "samples": items}
            data.append({**about, **_numbers(*three)})
    header = ("method", "task", "paper", "released code, run here", "ours, run here", "ours to paper, points")
    items = sum(len(one.records) for one in next(iter(cells.rows.values())).values())
    title = (
        f"{short(cells.model)}: accuracy in % / steps. The paper's are those of {paper_name(cells.model)} on "
        f"the whole sets, the others were run here on {items:,} items"
    )
    return (Table(f"{name}-paper-{short(cells.model)}", title, header, tuple(lines), tuple(data)),)


def _printed(row: Mapping[str, list[float]], tasks: list[str]) -> Row:
    cells = {task: Figures(*row[methods.role(task)]) for task in tasks if methods.role(task) in row}
    return _with_mean(cells)


def _measured(outcomes: Mapping[str, Outcome]) -> Row:
    return _with_mean({task: Figures(100 * one.accuracy, one.steps) for task, one in outcomes.items()})


def _with_mean(cells: dict[str, Figures]) -> Row:
    """Add the mean if all tasks of the paper are there."""
    if {methods.role(task) for task in cells} != set(methods.ROLES):
        return cells
    accuracy = stats.macro({task: one.accuracy for task, one in cells.items()})
    return {**cells, MEAN: Figures(accuracy, stats.macro({task: one.steps for task, one in cells.items()}))}


def _numbers(paper: Figures | None, released: Figures | None, ours: Figures) -> dict[str, Any]:
    """Return the figures for the CSV file."""
    found = {"paper": paper, "released": released, "ours": ours}
    return {
        f"{name}_{field}": "" if one is None else getattr(one, field)
        for name, one in found.items()
        for field in Figures._fields
    }
