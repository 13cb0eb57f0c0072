"""Find the LESS setting that meets a target on a calibration set, and write it as a preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.experiments import drawing, methods, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, declare, numbers, short
from unmask.experiments.lab import Lab, LabSettings
from unmask.experiments.methods import HARD
from unmask.experiments.report import Finding, Picture, Report, Table, above, below, flat
from unmask.experiments.runs import Outcome
from unmask.samplers import LESS
from unmask.samplers.presets import Preset, write_preset
from unmask.types import Sampler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONFIDENCES = (0.60, 0.75, 0.90)
DIVERGENCES = (0.020, 0.040, 0.080)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the points lost against Base or, if `max_steps` is given, on the steps."""

    max_loss: float
    max_steps: float | None

    @classmethod
    def of(cls, settings: LabSettings) -> Target:
        """Return the target of these settings."""
        return cls(settings.max_loss, settings.max_steps)

    def finding(self, what: str, base: Mapping[str, Outcome], mine: Mapping[str, Outcome]) -> Finding:
        """Test whether outcomes meet the target."""
        if self.max_steps is not None:
            return below(
                f"{what} takes at most {self.max_steps:g} steps",
                stats.steps(mine),
                self.max_steps,
                unit="steps",
            )
        gap = stats.difference(base, mine)
        points = "point" if self.max_loss == 1 else "points"
        return above(f"{what} is at most {self.max_loss:g} {points} below Base", gap, -self.max_loss)

    def met(self, base: Mapping[str, Outcome], mine: Mapping[str, Outcome]) -> bool:
        """Return whether the whole interval meets the target."""
        return self.finding("", base, mine).verdict == "holds"

    def miss(self, base: Mapping[str, Outcome], mine: Mapping[str, Outcome]) -> float:
        """Return how far the worse end of the interval misses the target."""
        if self.max_steps is not None:
            return max(0.0, stats.steps(mine).high - self.max_steps)
        return max(0.0, -self.max_loss - stats.difference(base, mine).low)


def candidates() -> dict[str, LESS]:
    """Return the candidate settings of c, d, P and the policy, by label."""
    swept = [LESS(min_confidence=c, max_jsd=d) for c in CONFIDENCES for d in DIVERGENCES]
    deeper = [replace(one, persistence=3) for one in swept if one.max_jsd == 0.040]
    other = [replace(one, policy="all", block_policy="run") for one in swept if one.max_jsd == 0.040]
    return {_label(one): one for one in (*swept, *deeper, *other)}


def _label(sampler: LESS) -> str:
    return (
        f"c = {sampler.min_confidence:.2f}, d = {sampler.max_jsd:.3f}, P = {sampler.persistence}, "
        f"{sampler.policy} / {sampler.block_policy}"
    )


def _samplers(family: str, task: str) -> dict[str, Sampler]:
    return {"Base": methods.base(family), **candidates()}


def choose(rows: Mapping[str, Mapping[str, Outcome]], target: Target) -> str:
    """Return the setting that meets the target best.

    Only settings whose whole interval meets the target count. A bound on the loss selects the one with the
    fewest forwards, a bound on steps the most accurate one. If none counts, return the one that misses least.
    """
    names = [name for name in rows if name != "Base"]
    sure = [name for name in names if target.met(rows["Base"], rows[name])]
    if not sure:
        return min(names, key=lambda name: (target.miss(rows["Base"], rows[name]), name))
    if target.max_steps is not None:
        return max(sure, key=lambda name: (stats.accuracy(rows[name]).value, name))
    return min(sure, key=lambda name: (stats.forwards(rows[name]).value, name))


def _build(lab: Lab, all_cells: Sequence[Cells]) -> Report:
    target = Target.of(lab.settings)
    chosen = {cells.model: choose(cells.rows, target) for cells in all_cells}
    notes = [_written(lab, cells, chosen[cells.model], target) for cells in all_cells]
    return Report(
        tables=flat([_tables(cells, chosen[cells.model], target) for cells in all_cells]),
        pictures=(_picture(all_cells, chosen, target),),
        findings=tuple(
            target.finding(
                f"{short(cells.model)}: {chosen[cells.model]}", cells.rows["Base"], _chosen(cells, chosen)
            )
            for cells in all_cells
        ),
        notes=tuple(notes),
    )


def _chosen(cells: Cells, chosen: Mapping[str, str]) -> Mapping[str, Outcome]:
    return cells.rows[chosen[cells.model]]


def _written(lab: Lab, cells: Cells, name: str, target: Target) -> str:
    """Write the chosen setting as a preset, and return a note on its use."""
    finding = target.finding("the setting", cells.rows["Base"], cells.rows[name])
    about = (
        f"calibrated on {', '.join(cells.tasks)} for {short(cells.model)}; "
        f"{finding.statement}: {finding.verdict} ({finding.numbers})"
    )
    path = Path(lab.settings.out) / "presets" / f"less-{short(cells.model)}.json"
    write_preset(path, Preset(sampler="less", fields=_fields(candidates()[name]), about=about))
    return (
        f"`presets/{path.name}` in the output folder holds the setting for {short(cells.model)}; "
        f"`unmask generate`, `eval` and `serve` take it as `--sampler FILE`."
    )


def _fields(sampler: LESS) -> dict[str, object]:
    names = ("min_confidence", "max_jsd", "persistence", "policy", "block_policy")
    return {name: getattr(sampler, name) for name in names}


def _tables(cells: Cells, name: str, target: Target) -> tuple[Table, ...]:
    base, rows = cells.rows["Base"], []
    for label in candidates():
        mine = cells.rows[label]
        rows.append(
            (
                label,
                stats.difference(base, mine).shown(sign=True),
                stats.steps(mine).shown(),
                stats.forwards(mine).shown(),
                target.finding("", base, mine).verdict,
                "chosen" if label == name else "",
            )
        )
    header = ("setting", "points to Base", "steps", "forwards", "keeps to the target", "")
    title = f"{short(cells.model)}: settings against the target"
    table = Table(
        f"calibrate-{short(cells.model)}", title, header, tuple(rows), tuple(numbers(cells, "Base"))
    )
    return (table, *_held_out(cells, target))


def _held_out(cells: Cells, target: Target) -> tuple[Table, ...]:
    """Choose a setting without each task in turn, and judge it on that task."""
    if len(cells.tasks) < 2:
        return ()
    rows = []
    for task in cells.tasks:
        rest = {
            label: {other: one for other, one in outcomes.items() if other != task}
            for label, outcomes in cells.rows.items()
        }
        name = choose(rest, target)
        base, mine = {task: cells.rows["Base"][task]}, {task: cells.rows[name][task]}
        verdict = target.finding("", base, mine).verdict
        gap, steps = stats.difference(base, mine), stats.steps(mine)
        rows.append((methods.title(task), name, gap.shown(sign=True), f"{steps.value:.1f}", verdict))
    header = ("left out", "chosen on the rest", "points to Base there", "steps", "keeps to the target there")
    title = f"{short(cells.model)}: chosen without one task, judged on it"
    return (Table(f"calibrate-held-out-{short(cells.model)}", title, header, tuple(rows)),)


def _picture(all_cells: Sequence[Cells], chosen: Mapping[str, str], target: Target) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(all_cells), height=3.4)
        for panel, cells in zip(axes, all_cells, strict=True):
            _draw_settings(panel, cells, chosen[cells.model])
            if target.max_steps is None:
                panel.axhline(
                    -target.max_loss, color="#000000", linewidth=1, linestyle="--", label="least allowed"
                )
            panel.set_xlabel("forward passes per sample")
            panel.set_ylabel("accuracy to Base, points")
        drawing.legend(figure, axes[0])
        return figure

    return Picture("calibrate", "Every setting against Base, paired, with 95 % intervals.", draw)


def _draw_settings(panel: Axes, cells: Cells, chosen: str) -> None:
    for name in candidates():
        cost = stats.forwards(cells.rows[name]).value
        gap = stats.difference(cells.rows["Base"], cells.rows[name])
        mine = name == chosen
        look = drawing.look("LESS") if mine else {**drawing.look("LESS", filled=False), "markersize": 6}
        label = "LESS, chosen setting" if mine else "LESS, other settings"
        panel.errorbar(
            cost,
            gap.value,
            yerr=drawing.reach(gap),
            capsize=2,
            linewidth=1,
            linestyle="",
            label=label,
            **look,
        )
        if mine:
            message = f"{chosen}:\n{gap.shown(sign=True)} points to Base in {cost:.1f} forwards"
            drawing.title(panel, short(cells.model), message)


EXPERIMENT = Experiment(
    name="calibrate",
    title="Calibration",
    about=(
        "The cheapest setting whose whole 95 % interval keeps to the target: at most --max-loss points below "
        "Base or, with --max-steps, the most accurate one within that many steps. Policies are named for "
        "full sequences / for blocks. Each interval is of one setting; picking the best of many makes it "
        "somewhat too narrow, which the held-out table shows."
    ),
    runs=lambda lab: declare(lab, _samplers, HARD),
    build=_build,
)
