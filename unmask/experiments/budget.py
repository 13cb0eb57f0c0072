"""LESS with smaller and larger budgets of reverse steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unmask.experiments import drawing, methods, stats
from unmask.experiments.ablation import points
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, RunKey, short, table
from unmask.experiments.lab import Lab
from unmask.experiments.report import Finding, Picture, Report, Table, below, flat
from unmask.experiments.runs import Run
from unmask.experiments.side_by_side import side_by_side
from unmask.samplers import SAMPLERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.25, 0.5, 1.0, 2.0)  # steps / canvas length: 64, 128, 256 and 512 steps for 256 tokens


def _declare(lab: Lab) -> dict[RunKey, Run]:
    return {
        (model, _label(model, share, lab), task): lab.run(
            model, task, SAMPLERS["less"], steps=_steps(share, lab.new_tokens(task))
        )
        for model in lab.models
        for task in lab.tasks(model, methods.HARD)
        for share in SHARES
    }


def _steps(share: float, tokens: int) -> int | None:
    """Return the budget, or None for one step per token, so that other experiments share the run."""
    return None if share == 1 else round(share * tokens)


def _build(lab: Lab, all_cells: Sequence[Cells]) -> Report:
    return Report(
        tables=flat([_tables(cells) for cells in all_cells]),
        pictures=(_picture(all_cells),),
        findings=flat([_findings(cells) for cells in all_cells]),
    )


def _label(model: str, share: float, lab: Lab) -> str:
    return f"T = {round(share * lab.new_tokens(lab.tasks(model)[0]))}"


def _tables(cells: Cells) -> tuple[Table, ...]:
    labels = list(cells.rows)
    paper = {label: label.removeprefix("T = ") for label in labels}
    heading = f"{short(cells.model)}: accuracy / steps (points to {labels[2]})"
    return (
        table(cells, "budget", heading, against=labels[2]),
        *side_by_side(cells, "budget", rows=paper),
    )


def _findings(cells: Cells) -> Sequence[Finding]:
    quarter, half, whole, twice = cells.rows
    model = short(cells.model)
    more = stats.difference(cells.rows[whole], cells.rows[twice])
    gain = max(abs(more.low), abs(more.high))
    same = stats.Estimate(
        abs(more.value), 0.0 if more.low <= 0 <= more.high else min(abs(more.low), abs(more.high)), gain
    )
    return (
        below(f"{model}: {twice} instead of {whole} changes less than 1 point", same, 1.0),
        below(f"{model}: {half} is worse than {whole}", points(cells, half, whole)),
        below(f"{model}: {quarter} is worse than {whole}", points(cells, quarter, whole)),
    )


def _picture(all_cells: Sequence[Cells]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(all_cells), height=3.6)
        for panel, cells in zip(axes, all_cells, strict=True):
            budgets = [float(label.removeprefix("T = ")) for label in cells.rows]
            for number, task in enumerate(cells.tasks):
                found = [stats.accuracy({task: one[task]}) for one in cells.rows.values()]
                panel.errorbar(
                    [(1 + 0.04 * number) * budget for budget in budgets],  # tasks side by side
                    [estimate.value for estimate in found],
                    yerr=[flat(ends) for ends in zip(*map(drawing.reach, found), strict=True)],
                    label=methods.title(task),
                    elinewidth=0.8,
                    capsize=2,
                    **drawing.task_look(number),
                )
            drawing.title(panel, short(cells.model), _message(cells))
            panel.set_xscale("log", base=2)
            panel.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
            panel.set_xlabel("budget T, reverse steps")
            panel.set_ylabel("accuracy of LESS, %")
        drawing.legend(figure, axes[0])
        return figure

    return Picture("budget", "Accuracy of LESS over the budget of reverse steps, with 95 % intervals.", draw)


def _message(cells: Cells) -> str:
    _, half, whole, twice = cells.rows
    return "\n".join(
        f"{label}: {points(cells, label, whole).shown(2, sign=True)} points to {whole}"
        for label in (half, twice)
    )


EXPERIMENT = Experiment(
    name="budget",
    title="Reverse-step budget",
    about=(
        "The canvas keeps its length L; T is L/4, L/2, L and 2L: the paper's 64 to 512 for 256 tokens, 32 to "
        "256 for the 128 tokens of the mini tasks. Masks that outlive the budget are filled in one forward."
    ),
    runs=_declare,
    build=_build,
)
