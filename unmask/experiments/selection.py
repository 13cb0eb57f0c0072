"""Token selection at committed positions: the most likely token, or a draw from a nucleus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.evals.records import settings_of
from unmask.experiments import ablation, methods
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, RunKey, short, table
from unmask.experiments.lab import Lab
from unmask.experiments.report import Finding, Report, Table, below, flat
from unmask.experiments.runs import Run
from unmask.experiments.side_by_side import side_by_side
from unmask.samplers import SAMPLERS
from unmask.samplers.wrapper import kind
from unmask.text.generate import generate
from unmask.types import Decision, Needs, Observation, Sampler

ARGMAX = "Argmax"
SELECTIONS: dict[str, dict[str, Any]] = {
    ARGMAX: {},
    "Nucleus 0.5, 0.95": {"temperature": 0.5, "top_p": 0.95},
    "Nucleus 0.7, 0.90": {"temperature": 0.7, "top_p": 0.90},
}
CHECKED = 4  # samples per model


@dataclass(frozen=True)
class Doubting:
    """A sampler that also decides with the second most likely tokens, and counts changes of eligibility."""

    inner: Sampler
    seen: dict[str, int] = field(default_factory=lambda: {"positions": 0, "different": 0})

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def decide(self, obs: Observation) -> Decision:
        decision = self.inner.decide(obs)
        other = self.inner.decide(replace(obs, drawn=obs.now.top_ids[..., 1]))
        self.seen["positions"] += int(obs.active.sum())
        self.seen["different"] += int((decision.eligible != other.eligible).sum())
        return decision


def _declare(lab: Lab) -> dict[RunKey, Run]:
    return {
        (model, label, task): lab.run(model, task, SAMPLERS["less"], **settings)
        for model in lab.models
        for task in lab.tasks(model, methods.HARD)
        for label, settings in SELECTIONS.items()
    }


def _build(lab: Lab, all_cells: Sequence[Cells]) -> Report:
    checks = {model: _independence(lab, model) for model in lab.models}
    return Report(
        tables=(*flat([_tables(cells) for cells in all_cells]), _check_table(checks)),
        pictures=(ablation.picture("selection", all_cells, ARGMAX),),
        findings=flat([_findings(cells) for cells in all_cells]),
    )


def _independence(lab: Lab, model: str) -> dict[str, int]:
    """Count how often another draw would have changed eligibility."""
    task = lab.tasks(model, methods.HARD)[0]
    run = lab.run(model, task, SAMPLERS["less"], **SELECTIONS["Nucleus 0.5, 0.95"])
    samples = lab.samples(task, CHECKED)

    def make() -> dict[str, int]:
        watched = Doubting(run.sampler)
        generate(lab.model(model), [sample.prompt for sample in samples], watched, run.config)
        return watched.seen

    settings = {
        "task": task,
        "samples": len(samples),
        "sampler": [kind(run.sampler), settings_of(run.sampler)],
        "config": settings_of(run.config),
    }
    seen: dict[str, int] = lab.measurement(model, "eligibility", settings, make)
    return seen


def _check_table(checks: dict[str, dict[str, int]]) -> Table:
    rows = [(short(model), str(seen["positions"]), str(seen["different"])) for model, seen in checks.items()]
    header = ("model", "masked positions looked at", "whose eligibility depends on the drawn token")
    return Table(
        "selection-eligibility", "Eligibility is computed before a token is drawn", header, tuple(rows)
    )


def _tables(cells: Cells) -> tuple[Table, ...]:
    heading = f"{short(cells.model)}: accuracy / steps (points to {ARGMAX.lower()})"
    return (
        table(cells, "selection", heading, against=ARGMAX),
        *side_by_side(cells, "selection", rows={label: label for label in SELECTIONS}),
    )


def _findings(cells: Cells) -> Sequence[Finding]:
    return [
        below(
            f"{short(cells.model)}: {label.lower()} is less accurate than argmax",
            ablation.points(cells, label, ARGMAX),
        )
        for label in SELECTIONS
        if label != ARGMAX
    ]


EXPERIMENT = Experiment(
    name="selection",
    title="Token selection",
    about=(
        "Temperature and nucleus of the committed tokens; the rule reads the model's own distribution, so "
        "only later steps can differ. The released LLaDA code adds noise to the distribution first, which is "
        "why its steps fall in the paper's table; the check below shows that ours does not."
    ),
    runs=_declare,
    build=_build,
)
