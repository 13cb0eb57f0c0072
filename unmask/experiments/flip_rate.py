"""How often the top-1 token of a masked position changes from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from unmask.experiments import drawing, methods, stats
from unmask.experiments.audit import Trail, audited
from unmask.experiments.experiment import Experiment
from unmask.experiments.fallback import audits
from unmask.experiments.grid import Cells, short
from unmask.experiments.lab import Lab
from unmask.experiments.report import Picture, Report, Table, below
from unmask.experiments.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 20  # parts of a trajectory
FINAL = 0.75  # start of the final quarter
BOUND = 5.0  # percent; the paper's bound for the final quarter
FEWEST = 5  # samples; a point with fewer is not drawn


class Share(NamedTuple):
    """Percentage of masked positions that flip in one part of the trajectories."""

    percent: float | None  # None if no sample has a masked position to compare
    samples: int  # samples with a masked position to compare


def curve(trails: Sequence[Trail]) -> list[Share]:
    """Return the share of flips in each part of the trajectory."""
    flips, watched = [0] * BINS, [0] * BINS
    samples: list[set[int]] = [set() for _ in range(BINS)]
    for number, trail in enumerate(trails):
        steps = len(trail.flips)
        for step in range(steps):
            part = step * BINS // steps
            flips[part] += trail.flips[step]
            watched[part] += trail.watched[step]
            if trail.watched[step]:
                samples[part].add(number)
    return [
        Share(100 * flip / seen if seen else None, len(those))
        for flip, seen, those in zip(flips, watched, samples, strict=True)
    ]


def quarter(trails: Sequence[Trail], *, final: bool) -> Estimate:
    """Return the mean percentage of flips in the first or the final quarter of a sample's steps."""
    rates = []
    for trail in trails:
        steps = len(trail.flips)
        part = slice(int(FINAL * steps), steps) if final else slice(0, max(1, steps // 4))
        seen = sum(trail.watched[part])
        if seen:
            rates.append(100 * sum(trail.flips[part]) / seen)
    return stats.mean(rates) if rates else Estimate(0.0, -inf, inf)


def _build(lab: Lab, _: Sequence[Cells]) -> Report:
    trails = {
        (model, task): audited(lab, run)
        for (model, label, task), run in audits(lab).items()
        if label == "LESS"
    }
    rows, data, findings = [], [], []
    for (model, task), samples in trails.items():
        first, last = quarter(samples, final=False), quarter(samples, final=True)
        rows.append((short(model), methods.title(task), first.shown(), last.shown(), str(len(samples))))
        data += [
            {
                "model": short(model),
                "task": task,
                "trajectory": (number + 0.5) / BINS,
                "flip_percent": share.percent,
                "samples": share.samples,
            }
            for number, share in enumerate(curve(samples))
        ]
        where = f"{short(model)}, {methods.title(task)}"
        findings.append(
            below(f"{where}: at most {BOUND:g} % flip in the final quarter", last, BOUND, unit="%")
        )
    header = ("model", "task", "first quarter, %", "final quarter, %", "samples")
    table = Table("flip-rate", "Top-1 flips per step", header, tuple(rows), tuple(data))
    return Report(tables=(table,), pictures=(_picture(lab, trails),), findings=tuple(findings))


def _picture(lab: Lab, trails: dict[tuple[str, str], list[Trail]]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(lab.models), height=3.4)
        for panel, model in zip(axes, lab.models, strict=True):
            own = {task: mine for (of, task), mine in trails.items() if of == model}
            for number, (task, mine) in enumerate(own.items()):
                line = _drawn(curve(mine), min(FEWEST, len(mine)))
                panel.plot(*line, label=methods.title(task), **drawing.task_look(number))
            panel.axvspan(100 * FINAL, 100, color="#EEEEEE", zorder=0)
            last = [quarter(mine, final=True).value for mine in own.values()]
            message = f"final quarter: {min(last):.1f} to {max(last):.1f} % (paper: at most {BOUND:g} %)"
            drawing.title(panel, short(model), message)
            panel.plot([100 * FINAL, 100], [BOUND, BOUND], color="#333333", linewidth=1, linestyle="--")
            panel.set_xlim(0, 100)
            panel.set_ylim(bottom=0)
            panel.set_xlabel("share of the executed steps, %")
            panel.set_ylabel("top-1 flips, % of masked positions")
        drawing.legend(figure, axes[0])
        return figure

    caption = (
        "Flips of the top-1 token under LESS. The final quarter is shaded, with the paper's bound. Points of "
        f"fewer than {FEWEST} samples are not drawn."
    )
    return Picture("flip-rate", caption, draw)


def _drawn(shares: Sequence[Share], fewest: int) -> tuple[list[float], list[float]]:
    """Return the coordinates of the points with enough samples."""
    kept = [
        (100 * (at + 0.5) / BINS, share.percent)
        for at, share in enumerate(shares)
        if share.percent is not None and share.samples >= fewest
    ]
    return [across for across, _ in kept], [up for _, up in kept]


EXPERIMENT = Experiment(
    name="flip-rate",
    title="Top-1 flips over the trajectory",
    about=(
        "The share of still masked positions whose most likely token differs from the step before, inside "
        "the active block. Trajectories differ in length, so each is stretched to 100 %. The first 50 "
        "samples."
    ),
    runs=lambda lab: {},
    build=_build,
)
