"""Compare samplers on a grid of models and all small tasks, each tuned over the same number of settings.

Every setting decodes the test items. Each half of the items chooses a sampler's setting for the other half,
so every item is judged at a setting that was chosen without it. All settings make a sampler's curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from unmask.evals import get_task
from unmask.evals.agreement import BARS, Agreement, measure
from unmask.evals.tasks.mini import CANVAS
from unmask.experiments.evidence_report import build
from unmask.experiments.experiment import Experiment
from unmask.experiments.frontier_study import Changes, Method
from unmask.experiments.grid import Cells, RunKey
from unmask.experiments.lab import Lab, Missing
from unmask.experiments.runs import Run
from unmask.text.config import GenerationConfig

PROMPTS = 8  # prompts per task for the calibration without labels
GATE = ("min_confidence", (0.6, 0.75, 0.9, 0.95))
METHODS = (  # four settings each
    Method(label="Base", preset="base", other={"dream": "base-entropy"}, sweep=("steps", (16, 32, 64, 128))),
    Method(label="LESS", preset="less", sweep=GATE),
    Method(label="LESS, confidence only", preset="less-confidence-only", sweep=GATE),
    Method(label="First mask", preset="first-mask", sweep=("min_confidence", (0.9, 0.95, 0.98, 0.99))),
    Method(
        label="First mask, accurate",
        preset="first-mask-accurate",
        sweep=("min_confidence", (0.9, 0.95, 0.98, 0.99)),
    ),
    Method(label="Threshold", preset="threshold", sweep=("min_confidence", (0.8, 0.9, 0.95, 0.98))),
    Method(
        label="Threshold, end rule",
        preset="threshold",
        changes={"end_tokens": "last"},
        sweep=("min_confidence", (0.8, 0.9, 0.95, 0.98)),
    ),
    Method(label="KLASS", preset="klass", sweep=("min_confidence", (0.8, 0.9, 0.95, 0.98))),
    Method(label="Entropy bound", preset="entropy-bound", sweep=("bound", (0.01, 0.03, 0.1, 0.3))),
)


def declare(lab: Lab, study: Sequence[Method] = METHODS) -> dict[RunKey, Run]:
    """Return the runs. With `records_only`, leave out the samplers of a model that lack a record."""
    if not lab.grid:
        raise Missing("evidence needs a grid of models; name its folder with --grid")
    found: dict[RunKey, Run] = {}
    for model in lab.models:
        for method in study:
            runs = {
                (model, label, task): _run(lab, method, model, task, changes)
                for label, changes in method.swept.items()
                for task in lab.tasks(model)
            }
            if not (lab.settings.records_only and lab.missing(runs.values())):
                found |= runs
    if not found:
        out = lab.settings.out
        raise Missing(f"{out} has no sampler with all its records; name the --limit and --tasks of its runs")
    return found


def _run(lab: Lab, method: Method, model: str, task: str, changes: Changes) -> Run:
    """Return a run. Scale a number of steps, given for the usual canvas, to the canvas of the task."""
    scaled = dict(changes)
    if "steps" in scaled:
        scaled["steps"] = int(scaled["steps"] * get_task(task).max_new_tokens / CANVAS)
    return method.run(lab, model, task, scaled)


def agreements(lab: Lab, model: str) -> list[Agreement]:
    """Return the agreement of every bar with the careful rule on dev prompts, without their answers."""
    tasks = [task for task in lab.tasks(model) if _is_plain(lab, task)]
    settings: dict[str, Any] = {"tasks": tasks, "prompts": PROMPTS, "bars": list(BARS)}

    def make() -> list[dict[str, Any]]:
        loaded, config = lab.model(model), GenerationConfig(max_new_tokens=CANVAS)
        samples = [sample for task in tasks for sample in lab.samples(task, PROMPTS, protocol="dev")]
        prompts = [sample.prompt for sample in samples]
        return list(map(asdict, measure(loaded, prompts, config, batch_size=lab.batch_size(loaded))))

    return [Agreement(**one) for one in lab.measurement(model, "agreement", settings, make)]


def _agreements_if_kept(lab: Lab, model: str) -> list[Agreement]:
    """Return the agreements, or none if they are not kept and cannot be measured."""
    try:
        return agreements(lab, model)
    except Missing:
        return []


def _is_plain(lab: Lab, task: str) -> bool:
    """Return whether a task decodes all of a canvas of the usual length."""
    given = "around" in lab.samples(task, 1, protocol="dev")[0].meta
    return get_task(task).max_new_tokens == CANVAS and not given


def measured(lab: Lab, all_cells: Sequence[Cells]) -> Mapping[RunKey, Run]:
    """Measure the agreements. Return no further runs."""
    for cells in all_cells:
        _agreements_if_kept(lab, cells.model)
    return {}


def make_experiment(study: Sequence[Method] = METHODS) -> Experiment:
    """Return the experiment with these samplers."""
    return Experiment(
        name="evidence",
        title="A grid of models",
        about=(
            "Models of both families, several sizes and seeds, trained on all small tasks. Every sampler has "
            "four settings. Half of the items of a model choose the setting for the other half, and the "
            "other way round, so no item is judged at a setting that it helped to choose. AUP is the "
            "area under the best accuracy at so many tokens per forward or more; a setting more than 5 "
            "points below the best of all counts as zero. Where many comparisons are made, Holm's method "
            "corrects for their number; the intervals are those of single comparisons."
        ),
        runs=lambda lab: declare(lab, study),
        build=lambda lab, cells: build(
            lab, study, cells, {one.model: _agreements_if_kept(lab, one.model) for one in cells}
        ),
        then=measured,
    )


EXPERIMENT = make_experiment()
