"""LESS over a grid of thresholds: accuracy against steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unmask.experiments import drawing, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, RunKey, declare, numbers, short
from unmask.experiments.lab import Lab
from unmask.experiments.methods import HARD, more_methods
from unmask.experiments.report import Finding, Picture, Report, Table, above, flat
from unmask.experiments.runs import Outcome, Run
from unmask.samplers import LESS
from unmask.types import Sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCES = (0.50, 0.60, 0.75, 0.90)
DIVERGENCES = (0.005, 0.020, 0.040, 0.080)
CHOSEN = (0.75, 0.040)
MARKERS = ("Prophet", "KLASS", "Threshold 0.75", "Threshold 0.9")


def pairs() -> dict[tuple[float, float], LESS]:
    """Return LESS at every pair (c, d)."""
    return {(c, d): LESS(min_confidence=c, max_jsd=d) for c in CONFIDENCES for d in DIVERGENCES}


def label(pair: tuple[float, float]) -> str:
    """Return the label of a pair in tables."""
    return f"c = {pair[0]:.2f}, d = {pair[1]:.3f}"


def _samplers(family: str, task: str) -> dict[str, Sampler]:
    others = more_methods(family, task)
    swept: dict[str, Sampler] = {label(pair): sampler for pair, sampler in pairs().items()}
    return {**swept, "Base": others["Base"], **{name: others[name] for name in MARKERS}}


def sweep(lab: Lab) -> dict[RunKey, Run]:
    """Return the runs of the sweep and of the baselines."""
    return declare(lab, _samplers, HARD)


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other beats in both cost and quality, cheapest first."""
    kept: list[str] = []
    best = float("-inf")
    for name, (_, quality) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if quality > best:
            kept.append(name)
            best = quality
    return kept


def cost_and_accuracy(outcomes: Mapping[str, Outcome]) -> tuple[float, float]:
    """Return macro steps and macro accuracy in percent."""
    cost = stats.macro({task: one.steps for task, one in outcomes.items()})
    return cost, 100 * stats.macro({task: one.accuracy for task, one in outcomes.items()})


def _build(lab: Lab, all_cells: Sequence[Cells]) -> Report:
    return Report(
        tables=tuple(_table(cells) for cells in all_cells),
        pictures=(_picture(all_cells),),
        findings=flat([_findings(cells) for cells in all_cells]),
    )


def _swept(cells: Cells) -> dict[str, tuple[float, float]]:
    return {label(pair): cost_and_accuracy(cells.rows[label(pair)]) for pair in pairs()}


def _table(cells: Cells) -> Table:
    kept = frontier(_swept(cells))
    names = [*kept, *(name for name in (label(CHOSEN), "Base", *MARKERS) if name not in kept)]
    rows = []
    for name in names:
        outcomes = cells.rows[name]
        rows.append(
            (
                name,
                "yes" if name in kept else "",
                stats.accuracy(outcomes).shown(),
                stats.steps(outcomes).shown(),
                f"{stats.forwards(outcomes).value:.1f}",
            )
        )
    header = ("setting", "on the frontier", "mean accuracy, %", "steps", "forwards")
    title = f"{short(cells.model)}: the frontier of {len(pairs())} settings, and the baselines"
    return Table(f"pareto-{short(cells.model)}", title, header, tuple(rows), tuple(numbers(cells)))


def _findings(cells: Cells) -> Sequence[Finding]:
    swept = _swept(cells)
    best = max(swept, key=lambda name: (swept[name][1], -swept[name][0]))
    gap = stats.difference(cells.rows[best], cells.rows[label(CHOSEN)])
    statement = (
        f"{short(cells.model)}: {label(CHOSEN)} is within 1 point of the best setting ({best}, picked on "
        "these samples)"
    )
    return (above(statement, gap, -1.0),)


def _picture(all_cells: Sequence[Cells]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(all_cells), height=3.6)
        for panel, cells in zip(axes, all_cells, strict=True):
            drawing.accuracy_axis(panel)
            swept = _swept(cells)
            kept = frontier(swept)
            panel.plot(
                *zip(*(swept[name] for name in kept), strict=True),
                color=drawing.light(drawing.colour("LESS")),
                linewidth=1.2,
            )
            for name, place in swept.items():
                look = drawing.look("LESS", filled=name == label(CHOSEN))
                panel.plot(*place, **(look if name == label(CHOSEN) else {**look, "markersize": 6}))
            for name in MARKERS:
                panel.plot(*cost_and_accuracy(cells.rows[name]), **drawing.look(name))
            base = cost_and_accuracy(cells.rows["Base"])[1]
            panel.axhline(base, color=drawing.colour("Base"), linewidth=1, linestyle="--")
            panel.text(
                0.99,
                base,
                "Base",
                transform=panel.get_yaxis_transform(),
                ha="right",
                va="bottom",
                fontsize=7.5,
            )
            panel.set_xlabel("reverse steps per sample")
            drawing.title(panel, short(cells.model), _message(swept, kept[-1]))
        for panel, cells in zip(axes, all_cells, strict=True):
            drawing.name_points(figure, panel, _names(cells))
        return figure

    caption = (
        "Accuracy over steps for LESS at every (c, d) of the sweep, with the line of the frontier. The full "
        "star is the paper's pair, the dashed line the accuracy of Base."
    )
    return Picture("pareto", caption, draw)


def _message(swept: Mapping[str, tuple[float, float]], best: str) -> str:
    lines = (("LESS", label(CHOSEN)), (f"with {best}", best))
    return "\n".join(
        f"{words}: {swept[name][1]:.1f} % in {swept[name][0]:.1f} steps" for words, name in lines
    )


def _names(cells: Cells) -> dict[str, tuple[float, float]]:
    """Return the points that the figure names."""
    others = {name: cost_and_accuracy(cells.rows[name]) for name in MARKERS}
    return {"LESS": cost_and_accuracy(cells.rows[label(CHOSEN)]), **others}


EXPERIMENT = Experiment(
    name="pareto",
    title="Threshold sweep",
    about=(
        f"c over {', '.join(f'{c:g}' for c in CONFIDENCES)} and d over "
        f"{', '.join(f'{d:g}' for d in DIVERGENCES)}, on the math and code tasks."
    ),
    runs=sweep,
    build=_build,
)
