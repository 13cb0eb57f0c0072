"""FLOPs that LESS saves per sample, over the budget."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from unmask.experiments import drawing, methods, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.forward_cost import forward_flops, model_shape
from unmask.experiments.grid import Cells, RunKey, short
from unmask.experiments.lab import Lab
from unmask.experiments.paper import reported
from unmask.experiments.report import Finding, Picture, Report, Table, above
from unmask.experiments.runs import Outcome, Run
from unmask.models.trunk import Shape
from unmask.samplers import SAMPLERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.125, 0.25, 0.5, 1.0)  # canvas length / the task's length: 32, 64, 128 and 256 for 256 tokens


def first_task(lab: Lab, model: str) -> str:
    """Return the task to profile: GSM8K if it is among the tasks, else the first."""
    tasks = lab.tasks(model)
    return next((task for task in tasks if methods.role(task) == "gsm8k"), tasks[0])


def _declare(lab: Lab) -> dict[RunKey, Run]:
    declared = {}
    for model in lab.models:
        task = first_task(lab, model)
        for share in SHARES:
            length = round(share * lab.new_tokens(task))
            declared[model, str(length), task] = lab.run(model, task, SAMPLERS["less"], length=length)
    return declared


def compute_ratios(shape: Shape, length: int, outcome: Outcome) -> list[float]:
    """Return, per sample, the FLOPs of LESS over those of a Base that spends its whole budget."""
    ratios = []
    for record in outcome.records:
        one = forward_flops(shape, record.prompt_tokens + length)
        ratios.append(record.forwards * one / (length * one))
    return ratios


def _build(lab: Lab, cells: Sequence[Cells]) -> Report:
    ratios, rows, data, findings = {}, [], [], []
    shapes = {model: model_shape(model) for model in lab.models}
    by_length = {(one.model, int(label)): outcomes for one in cells for label, outcomes in one.rows.items()}
    for (model, length), outcomes in by_length.items():
        [outcome] = outcomes.values()
        ratios[model, length] = mine = compute_ratios(shapes[model], length, outcome)
        speedups, forwards = [1 / ratio for ratio in mine], [float(r.forwards) for r in outcome.records]
        costs = [forward_flops(shapes[model], r.prompt_tokens + length) for r in outcome.records]
        means = stats.ratio([float(length)] * len(mine), forwards)
        printed = reported("flops", model).get(str(length))
        rows.append(
            (
                short(model),
                str(length),
                f"{fmean(speedups):.2f} ± {_deviation(speedups):.2f}",
                means.shown(2),
                f"{fmean(forwards):.1f} ± {_deviation(forwards):.1f}",
                f"{fmean(costs) / 1e9:.3g}",
                "" if printed is None else f"{printed['speedup'][0]} / {printed['forwards'][0]}",
            )
        )
        data += [
            {"model": short(model), "T": length, "sample": r.id, "forwards": r.forwards, "flop_ratio": ratio}
            for r, ratio in zip(outcome.records, mine, strict=True)
        ]
        findings += _findings(model, length, mine)
    header = (
        "model",
        "T = L",
        "speed-up, mean of ratios ± deviation",
        "ratio of means",
        "LESS forwards ± deviation",
        "F(N), GFLOP",
        "paper: speed-up / forwards",
    )
    table = Table("flops", "Estimated compute against Base", header, tuple(rows), tuple(data))
    return Report(tables=(table,), pictures=(_picture(lab, ratios),), findings=tuple(findings))


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _findings(model: str, length: int, ratios: Sequence[float]) -> list[Finding]:
    speedup = stats.mean([1 / ratio for ratio in ratios])
    return [above(f"{short(model)}, T = {length}: LESS computes less than Base", speedup, 1.0, unit="times")]


def _picture(lab: Lab, ratios: dict[tuple[str, int], list[float]]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(lab.models))
        for panel, model in zip(axes, lab.models, strict=True):
            mine = {length: values for (of, length), values in ratios.items() if of == model}
            drawing.violins(
                panel, list(mine.values()), [str(length) for length in mine], drawing.colour("LESS")
            )
            panel.axhline(1, color="#333333", linewidth=0.8, linestyle="--")
            panel.set_ylim(bottom=0)
            panel.set_xlabel("budget T = L, tokens")
            panel.set_ylabel("FLOPs of LESS / FLOPs of Base")
            first, *_, last = [f"{median(values):.2f} at T = {length}" for length, values in mine.items()]
            drawing.title(panel, short(model), f"median: {first}, {last}")
        return figure

    return Picture("flops", "Compute ratio per sample; the bar is the median, the box the middle half.", draw)


EXPERIMENT = Experiment(
    name="flops",
    title="Compute per sample",
    about=(
        "Forwards times F(N), the paper's count for one forward over N columns, from the model's own sizes; "
        "Base spends its whole budget. T = L is L/8 to L: the paper's 32 to 256 for 256 tokens, 16 to 128 "
        "for the mini tasks. Both sides have the same N, so a sample's ratio is that of its forwards. The "
        "paper reports the mean of ratios; the ratio of means is the saving on the whole set."
    ),
    runs=_declare,
    build=_build,
)
