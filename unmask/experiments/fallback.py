"""How often the fallback decides instead of the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unmask.experiments import drawing, methods, stats
from unmask.experiments.audit import Trail, audited
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, short
from unmask.experiments.lab import Lab
from unmask.experiments.paper import reported
from unmask.experiments.report import Finding, Picture, Report, Table, below
from unmask.experiments.runs import Run
from unmask.samplers import SAMPLERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READINGS = {"LESS": "less", "LESS, Algorithm 1": "less-paper", "LESS, released code": "less-released"}
BOUND = 9.0  # percent; the paper's largest figure


def audits(lab: Lab) -> dict[tuple[str, str, str], Run]:
    """Return the runs to audit, by model, label and task."""
    return {
        (model, label, task): lab.run(model, task, SAMPLERS[name])
        for model in lab.models
        for task in lab.tasks(model, methods.HARD)
        for label, name in READINGS.items()
    }


def share(trails: Sequence[Trail], name: str) -> stats.Estimate:
    """Return the percentage of steps for which a field of Trail is true, averaged over samples."""
    return stats.mean([sum(getattr(t, name)) / max(1, len(t.commits)) for t in trails]).scaled(100)


def _build(lab: Lab, _: Sequence[Cells]) -> Report:
    trails = {key: audited(lab, run) for key, run in audits(lab).items()}
    rows, data, findings = [], [], []
    for (model, label, task), samples in trails.items():
        forced, empty = share(samples, "forced"), share(samples, "empty")
        commits = stats.mean([sum(t.commits) / max(1, len(t.commits)) for t in samples])
        printed = reported("fallback", model).get(methods.role(task), "")
        rows.append(
            (
                short(model),
                label,
                methods.title(task),
                forced.shown(),
                empty.shown(),
                commits.shown(2),
                str(printed),
            )
        )
        data.append(
            {
                "model": short(model),
                "method": label,
                "task": task,
                "samples": len(samples),
                "forced_percent": forced.value,
                "empty_percent": empty.value,
                "commits_per_step": commits.value,
            }
        )
        if label == "LESS":
            findings += _findings(f"{short(model)}, {methods.title(task)}", forced, empty)
    header = (
        "model",
        "method",
        "task",
        "fallback acted, % of steps",
        "nothing eligible, % of steps",
        "commits per step",
        "paper, %",
    )
    tables = (Table("fallback", "Forced steps by both definitions", header, tuple(rows), tuple(data)),)
    return Report(tables=tables, pictures=(_picture(lab, trails),), findings=tuple(findings))


def _findings(where: str, forced: stats.Estimate, empty: stats.Estimate) -> list[Finding]:
    return [
        below(f"{where}: the fallback acts on at most {BOUND:g} % of steps", forced, BOUND, unit="%"),
        below(f"{where}: nothing is eligible on at most {BOUND:g} % of steps", empty, BOUND, unit="%"),
    ]


def _picture(lab: Lab, trails: dict[tuple[str, str, str], list[Trail]]) -> Picture:
    def draw() -> Figure:
        tasks = {model: lab.tasks(model, methods.HARD) for model in lab.models}
        figure, axes = drawing.panels(len(lab.models), height=4.2, width=4.8)
        for panel, model in zip(axes, lab.models, strict=True):
            values = {
                f"{methods.title(task)}, {words}": share(trails[model, "LESS", task], name)
                for task in tasks[model]
                for words, name in (("fallback\u00a0acted", "forced"), ("none\u00a0eligible", "empty"))
            }
            less = drawing.colour("LESS")
            drawing.bars(
                panel, values, [less, drawing.light(less)] * len(tasks[model]), label="% of the steps of LESS"
            )
            forced = [estimate.value for estimate in values.values()][::2]
            message = f"fallback: {min(forced):.0f} to {max(forced):.0f} % of steps"
            drawing.title(panel, short(model), f"{message} (paper: at most {BOUND:g} %)")
            panel.axvline(BOUND, color="#333333", linewidth=1, linestyle="--")
        return figure

    caption = (
        "Share of reverse steps that the rule did not decide, with 95 % intervals; the dashed line is the "
        "paper's largest figure."
    )
    return Picture("fallback", caption, draw)


EXPERIMENT = Experiment(
    name="fallback",
    title="Fallback usage",
    about=(
        "The paper counts steps in which the fallback acted; the released code counts steps in which "
        "nothing was eligible anywhere. The first 50 samples of each math and code task."
    ),
    runs=lambda lab: {},
    build=_build,
)
