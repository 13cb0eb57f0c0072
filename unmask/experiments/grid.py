"""Tables of methods times tasks, one per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.evals.compare import compare
from unmask.evals.significance import wilson
from unmask.experiments import methods, stats
from unmask.experiments.lab import Lab
from unmask.experiments.report import Table
from unmask.experiments.runs import Outcome, Run
from unmask.types import Sampler

RunKey = tuple[str, str, str]  # (model, label of a table row, task)
Choose = Callable[[str, str], Mapping[str, Sampler]]  # (family, task) -> samplers by label


@dataclass(frozen=True, slots=True)
class Cells:
    """The outcomes of one model, by label and task."""

    model: str
    rows: Mapping[str, Mapping[str, Outcome]]

    @property
    def tasks(self) -> list[str]:
        """The tasks, in order."""
        return list(next(iter(self.rows.values())))


def always(samplers: Mapping[str, Sampler]) -> Choose:
    """Choose the same samplers for every family and task."""
    return lambda family, task: samplers


def declare(
    lab: Lab, choose: Choose, only: Sequence[str] | None = None, **settings: Any
) -> dict[RunKey, Run]:
    """Return a run per model, label and task."""
    return {
        (model, label, task): lab.run(model, task, sampler, **settings)
        for model in lab.models
        for task in lab.tasks(model, only)
        for label, sampler in choose(lab.family(model), task).items()
    }


def collect(outcomes: Mapping[RunKey, Outcome]) -> list[Cells]:
    """Group outcomes into one Cells per model."""
    by_model: dict[str, dict[str, dict[str, Outcome]]] = {}
    for (model, label, task), outcome in outcomes.items():
        by_model.setdefault(model, {}).setdefault(label, {})[task] = outcome
    return [Cells(model, rows) for model, rows in by_model.items()]


def table(cells: Cells, name: str, title: str, *, against: str | None = None) -> Table:
    """Return a table of accuracy and steps per task. `against` adds paired differences to that label."""
    head = ("method", *map(methods.title, cells.tasks), "mean accuracy, %", "steps", "forwards")
    header = head if against is None else (*head, f"points to {against}")
    rows = [_row(cells, label, against) for label in cells.rows]
    return Table(f"{name}-{short(cells.model)}", title, header, tuple(rows), tuple(numbers(cells, against)))


def _row(cells: Cells, label: str, against: str | None) -> tuple[str, ...]:
    outcomes = cells.rows[label]
    row = (
        label,
        *(_cell(cells, label, task, against) for task in cells.tasks),
        stats.accuracy(outcomes).shown(),
        f"{stats.steps(outcomes).value:.1f}",
        f"{stats.forwards(outcomes).value:.1f}",
    )
    if against is None:
        return row
    if label == against:
        return (*row, "")
    return (*row, stats.difference(cells.rows[against], outcomes).shown(sign=True))


def _cell(cells: Cells, label: str, task: str, against: str | None) -> str:
    """Return accuracy / steps and, in brackets, the difference to `against` in points."""
    outcome = cells.rows[label][task]
    shown = f"{100 * outcome.accuracy:.1f} / {outcome.steps:.1f}"
    if against is None or label == against:
        return shown
    return f"{shown} ({100 * (outcome.accuracy - cells.rows[against][task].accuracy):+.1f})"


def numbers(cells: Cells, against: str | None = None) -> list[dict[str, Any]]:
    """Return all numbers with their intervals, a line per method and task."""
    lines = []
    for label, outcomes in cells.rows.items():
        for task, outcome in outcomes.items():
            low, high = wilson(outcome.correct, len(outcome.records))
            line: dict[str, Any] = {
                "model": short(cells.model),
                "method": label,
                "task": task,
                "samples": len(outcome.records),
                "correct": outcome.correct,
                "accuracy": outcome.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
                "steps": outcome.steps,
                "forwards": outcome.forwards,
                "forced_share": outcome.forced_share,
            }
            if against is not None and label != against:
                pair = compare(cells.rows[against][task].records, outcome.records)
                line["difference"] = pair.difference
                line["difference_low"], line["difference_high"] = pair.difference_interval
                line["p_value"] = pair.p_value
            lines.append(line)
    return lines


def short(model: str) -> str:
    """Return the last part of a hub id or a path, without a revision."""
    return model.rstrip("/").rpartition("/")[2].partition("@")[0]
