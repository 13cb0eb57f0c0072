"""Thresholds chosen without one setting, and their accuracy on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from unmask.experiments import methods, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, short
from unmask.experiments.lab import Lab
from unmask.experiments.pareto import CHOSEN, label, pairs, sweep
from unmask.experiments.report import Finding, Report, Table
from unmask.experiments.runs import Outcome

TOLERANCE = 1.0  # points of mean accuracy that fewer steps may cost

Setting = tuple[str, str]  # model and task
Pair = tuple[float, float]


def choose(outcomes: Mapping[Pair, Mapping[Setting, Outcome]], settings: Sequence[Setting]) -> Pair:
    """Return the pair with the fewest steps among those within a point of the best mean accuracy."""
    accuracy = {
        pair: 100 * fmean(by_setting[s].accuracy for s in settings) for pair, by_setting in outcomes.items()
    }
    best = max(accuracy.values())
    good = [pair for pair, value in accuracy.items() if value >= best - TOLERANCE]
    return min(good, key=lambda pair: (fmean(outcomes[pair][s].steps for s in settings), pair))


def _build(lab: Lab, cells: Sequence[Cells]) -> Report:
    settings = [(one.model, task) for one in cells for task in one.tasks]
    outcomes = {
        pair: {(one.model, task): one.rows[label(pair)][task] for one in cells for task in one.tasks}
        for pair in pairs()
    }
    if len(settings) < 2:
        return Report(notes=("Leaving one out needs at least two tasks.",))
    rows, chosen = [], {}
    for setting in settings:
        rest = [other for other in settings if other != setting]
        chosen[setting] = pair = choose(outcomes, rest)
        mine, fixed = outcomes[pair][setting], outcomes[CHOSEN][setting]
        gap = stats.difference({setting[1]: fixed}, {setting[1]: mine})
        where = f"{short(setting[0])}, {methods.title(setting[1])}"
        rows.append((where, label(pair), _shown(mine), _shown(fixed), gap.shown(sign=True)))
    header = ("left out", "chosen on the rest", "accuracy / steps there", f"{label(CHOSEN)} there", "points")
    table = Table("leave-one-out", "Thresholds chosen without one setting", header, tuple(rows))
    return Report(tables=(table,), findings=tuple(_findings(outcomes, chosen)))


def _shown(outcome: Outcome) -> str:
    return f"{100 * outcome.accuracy:.1f} / {outcome.steps:.1f}"


def _findings(
    outcomes: Mapping[Pair, Mapping[Setting, Outcome]], chosen: Mapping[Setting, Pair]
) -> list[Finding]:
    """Test whether all splits choose the paper's pair, and whether they choose the same pair."""
    same = sum(pair == CHOSEN for pair in chosen.values())
    one_pair = len(set(chosen.values())) == 1
    gaps = [
        100.0 * (new - old)
        for setting, pair in chosen.items()
        for new, old in zip(
            _verdicts(outcomes[pair][setting]), _verdicts(outcomes[CHOSEN][setting]), strict=True
        )
    ]
    held_out = stats.mean(gaps)
    worth = f"held out, the chosen pairs differ from {label(CHOSEN)} by {held_out.shown(2, sign=True)} points"
    return [
        Finding(
            f"every split chooses {label(CHOSEN)}",
            "holds" if same == len(chosen) else "does not hold",
            f"{same} of {len(chosen)} splits; {worth}",
        ),
        Finding(
            "every split chooses the same pair",
            "holds" if one_pair else "does not hold",
            f"{len(set(chosen.values()))} different pairs; {worth}",
        ),
    ]


def _verdicts(outcome: Outcome) -> list[int]:
    """Return 1 or 0 per sample, in the order of the sample ids."""
    return [int(record.correct) for record in sorted(outcome.records, key=lambda record: record.id)]


EXPERIMENT = Experiment(
    name="leave-one-out",
    title="Leave one setting out",
    about=(
        "For each model and task, thresholds are chosen on all others: the fewest steps among the pairs "
        f"whose mean accuracy is within {TOLERANCE:g} point of the best. The paper does not say how it "
        "trades accuracy for steps; this is our reading."
    ),
    runs=sweep,
    build=_build,
)
