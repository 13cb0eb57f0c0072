"""The paper's figures, the released code and ours in one table."""

from __future__ import annotations

from collections.abc import Mapping

from unmask.experiments import methods
from unmask.experiments.grid import Cells, short
from unmask.experiments.paper import reported
from unmask.experiments.report import Table

RELEASED = "LESS, released code"


def side_by_side(cells: Cells, name: str, *, rows: Mapping[str, str]) -> tuple[Table, ...]:
    """Return a table of the paper's rows beside ours, or none for a model that the paper does not use.

    `rows` maps our labels to the paper's. Samplers that the paper does not have follow with our figures.
    """
    paper = reported(name, cells.model)
    if not paper:
        return ()
    lines = []
    for label, theirs in rows.items():
        if label in cells.rows and theirs in paper:
            lines.append((f"{label}, paper", *(_printed(paper[theirs], task) for task in cells.tasks)))
            lines.append((f"{label}, ours", *(_measured(cells, label, task) for task in cells.tasks)))
    others = [label for label in cells.rows if label not in rows or rows[label] not in paper]
    for label in sorted(others, key=lambda label: label != RELEASED):
        lines.append((label, *(_measured(cells, label, task) for task in cells.tasks)))
    header = ("accuracy / steps", *map(methods.title, cells.tasks))
    return (Table(f"{name}-paper-{short(cells.model)}", "Beside the paper's figures", header, tuple(lines)),)


def _printed(row: Mapping[str, list[float]], task: str) -> str:
    figures = row.get(methods.role(task))
    return "" if figures is None else f"{figures[0]:.1f} / {figures[1]:.1f}"


def _measured(cells: Cells, label: str, task: str) -> str:
    outcome = cells.rows[label][task]
    return f"{100 * outcome.accuracy:.1f} / {outcome.steps:.1f}"
