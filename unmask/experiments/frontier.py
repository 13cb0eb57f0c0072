"""Every sampler at its authors' setting and tuned on other items: accuracy against forwards.

The runs come in parts, the most important first, so that those exist if the command is killed:

authors    the test items at the authors' setting, with and without the end rule
held-out   other items, to check the figures of the search that found `first-mask`
end rule   the test items with the end rule, with the first mask as fallback, and with both
lossless   the dev items under samplers that promise the texts of another
sweep      the dev items at several values of each sampler's main field
tuned      the test items at the value that is best on the dev items
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from unmask.experiments import stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.frontier_report import TUNED, WITH_BOTH, WITH_END_RULE, WITH_FIRST, build, part
from unmask.experiments.frontier_study import STUDY, Changes, Method, Study
from unmask.experiments.grid import Cells, RunKey
from unmask.experiments.lab import Lab, Missing
from unmask.experiments.runs import Outcome, Run
from unmask.samplers import SAMPLERS

Rows = Mapping[str, tuple[Method, Changes]]  # by label


def declare(study: Study, lab: Lab) -> dict[RunKey, Run]:
    """Return the runs of all parts but the last. Raise at once if a sampler does not exist."""
    unknown = [name for name in study.presets if name not in SAMPLERS]
    if unknown:
        raise Missing(f"there is no sampler called {', '.join(unknown)}; the comparison leaves none out")
    return {
        **_runs(lab, "authors", _authors(study)),
        **_runs(
            lab, "held-out", {label: (study.by_label[label], {}) for label in study.held_out}, "held-out"
        ),
        **_runs(lab, "end rule", _end_rule(study)),
        **_runs(lab, "lossless", {one.label: (one, {}) for pair in study.lossless for one in pair}, "dev"),
        **_runs(lab, "sweep", _sweep(study), "dev"),
    }


def _runs(lab: Lab, name: str, rows: Rows, protocol: str | None = None) -> dict[RunKey, Run]:
    """Return the runs of a part: every row on every task of every model."""
    return {
        (model, f"{name}/{label}", task): method.run(lab, model, task, changes, protocol=protocol)
        for model in lab.models
        for label, (method, changes) in rows.items()
        for task in lab.tasks(model)
    }


def _authors(study: Study) -> Rows:
    rows: dict[str, tuple[Method, Changes]] = {}
    for method in study.methods:
        rows[method.label] = (method, {})
        if not method.end_rule:
            rows[method.label + WITH_END_RULE] = (method, study.end_rule)
    return rows


def _end_rule(study: Study) -> Rows:
    variants: dict[str, Changes] = {
        "": {},
        WITH_END_RULE: study.end_rule,
        WITH_FIRST: study.first_mask,
        WITH_BOTH: {**study.end_rule, **study.first_mask},
    }
    return {
        label + variant: (study.by_label[label], changes)
        for label in study.with_fallback
        for variant, changes in variants.items()
    }


def _sweep(study: Study) -> Rows:
    return {label: (method, changes) for method in study.methods for label, changes in method.swept.items()}


def choose(rows: Mapping[str, Mapping[str, Outcome]], labels: Sequence[str]) -> str:
    """Return the label with the best macro accuracy. Fewer forwards break ties."""

    def merit(label: str) -> tuple[float, float]:
        accuracy = stats.macro({task: one.accuracy for task, one in rows[label].items()})
        return round(accuracy, 9), -stats.macro({task: one.forwards for task, one in rows[label].items()})

    return max(labels, key=merit)


def tuned(study: Study, lab: Lab, all_cells: Sequence[Cells]) -> dict[RunKey, Run]:
    """Return the runs of the last part."""
    return dict(_tuned(study, lab, all_cells))


def _tuned(study: Study, lab: Lab, all_cells: Sequence[Cells]) -> Iterator[tuple[RunKey, Run]]:
    for cells in all_cells:
        rows = part(cells, "sweep").rows
        for method in study.methods:
            if method.sweep is None:
                continue
            best = choose(rows, list(method.swept))
            for task in lab.tasks(cells.model):
                run = method.run(lab, cells.model, task, method.swept[best])
                yield (cells.model, f"{TUNED}/{best}", task), run


def make_experiment(study: Study) -> Experiment:
    """Return the experiment of a study."""
    return Experiment(
        name="frontier",
        title="The frontier of all samplers",
        about=(
            "Every sampler at its authors' setting, with and without the end rule (an end token waits for "
            "the masks before it), and at the best of a small sweep on the dev items, which are neither "
            "training nor test problems."
        ),
        runs=partial(declare, study),
        build=partial(build, study),
        then=partial(tuned, study),
    )


EXPERIMENT = make_experiment(STUDY)
