"""Tables and figures of `evidence`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from unmask.evals.agreement import MAX_CHANGED, Agreement
from unmask.evals.agreement import choose as choose_bar
from unmask.experiments import drawing, methods, stats
from unmask.experiments.evidence_findings import (
    gate,
    loses,
    on_the_frontier,
    rankings,
    task_gaps,
    without_labels,
)
from unmask.experiments.frontier_study import Method
from unmask.experiments.grid import Cells, numbers
from unmask.experiments.judged import (
    END_RULE,
    GATED,
    RECOMMENDED,
    Judged,
    by_kind,
    by_size,
    most_seeds,
    pooled_gain,
)
from unmask.experiments.lab import Lab
from unmask.experiments.recommendation import recommend
from unmask.experiments.report import Picture, Report, Table, corrected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def build(
    lab: Lab,
    study: Sequence[Method],
    all_cells: Sequence[Cells],
    bars: Mapping[str, Sequence[Agreement]],
) -> Report:
    """Return the report."""
    judged = [Judged(lab.grid[cells.model], cells, study, bars[cells.model]) for cells in all_cells]
    advice = recommend(judged, RECOMMENDED)
    return Report(
        tables=(
            _models(judged),
            advice.table,
            *([_without_tasks(judged)] if len(judged[0].cells.tasks) > 1 else []),
            _against_all(RECOMMENDED, by_size(judged), "evidence-by-size"),
            _against_all(RECOMMENDED, by_kind(judged), "evidence-by-kind"),
            *_main_tables(judged),
            *([_against_all(GATED, by_kind(judged), "evidence-less")] if _ran(GATED, judged) else []),
            *([_known(judged)] if _ran(RECOMMENDED, judged) else []),
            _by_task(judged),
            _bars(judged),
            _tuned(judged),
            _pairs(judged),
        ),
        pictures=(_picture(judged, "evidence"), _picture(judged, "evidence-sizes")),
        notes=(advice.words,),
        findings=(
            *on_the_frontier(judged),
            *loses(judged),
            *gate(judged),
            *without_labels(judged),
            *rankings(judged),
        ),
    )


def _models(judged: Sequence[Judged]) -> Table:
    rows = [
        (
            one.name,
            f"{one.trained.parameters / 1e6:.1f}",
            str(one.trained.steps),
            f"{one.trained.seconds:.0f}",
            "/".join(f"{loss:.3f}" for loss in one.trained.validation.values()),
            one.trained.name.rpartition("-")[2],
        )
        for one in judged
    ]
    rates = next((one.trained.validation for one in judged if one.trained.validation), {})
    loss = f"validation loss at {'/'.join(rates)}" if rates else "validation loss"
    header = ("model", "M parameters", "steps", "seconds", loss, "hash")
    return Table("evidence-models", "The models", header, tuple(rows))


def _tuned(judged: Sequence[Judged]) -> Table:
    """Return the accuracy, forwards and AUP of every sampler, tuned on the other half of the items."""
    rows, data = [], []
    for one in judged:
        for method, outcomes in one.tuned.items():
            rows.append(
                (
                    one.name,
                    method,
                    " / ".join(dict.fromkeys(label.rpartition(", ")[2] for label in one.chosen[method])),
                    stats.accuracy(outcomes).shown(),
                    stats.forwards(outcomes).shown(),
                    stats.aup_estimate(one.areas[method]).shown(2),
                )
            )
        data += numbers(Cells(one.name, one.cells.rows))
    header = ("model", "sampler", "setting", "accuracy, %", "forwards", "AUP")
    return Table("evidence", "Every sampler, tuned on other items", header, tuple(rows), tuple(data))


def _against_all(sampler: str, models: Mapping[str, Sequence[Judged]], name: str) -> Table:
    """Compare a sampler with every other, over the models of each group."""
    groups = [
        (label, rival, [one for one in group if one.ran(rival, sampler)])
        for label, group in models.items()
        for rival in dict.fromkeys(other for one in group for other in one.tuned)
        if rival != sampler
    ]
    groups = [(label, rival, group) for label, rival, group in groups if group]
    tests = corrected(
        [
            ("", pooled_gain([(one.tuned[rival], one.tuned[sampler]) for one in each]))
            for _, rival, each in groups
        ]
    )
    rows = []
    for (label, rival, group), test in zip(groups, tests, strict=True):
        shares = [stats.share(one.tuned[rival], one.tuned[sampler], "forwards").value for one in group]
        rows.append((label, rival, str(len(group)), test.numbers, test.verdict, f"{fmean(shares):.0f}"))
    header = ("group", "rival", "models", "accuracy", "more accurate", "% of its forwards")
    title = f"{sampler} against every rival, mean over models"
    return Table(name, title, header, tuple(rows))


def _main_tables(judged: Sequence[Judged]) -> list[Table]:
    """Return the main table of each family, at the size with the most seeds."""
    found = []
    for group in most_seeds(judged):
        samplers = [label for label in group[0].tuned if all(label in one.tuned for one in group)]
        rows = [
            (methods.title(task), *(_mean_cell(group, label, [task]) for label in samplers))
            for task in group[0].cells.tasks
        ]
        rows.append(("mean", *(_mean_cell(group, label, group[0].cells.tasks) for label in samplers)))
        [name] = by_kind(group)
        title = f"{name}: accuracy in % / forwards of every sampler, mean over {len(group)} seeds"
        found.append(Table(f"evidence-main-{name}", title, ("task", *samplers), tuple(rows)))
    return found


def _mean_cell(group: Sequence[Judged], sampler: str, tasks: Sequence[str]) -> str:
    """Return the accuracy and the forwards of a sampler on some tasks, averaged over models."""
    rows = [{task: one.tuned[sampler][task] for task in tasks} for one in group]
    right = fmean(stats.accuracy(each).value for each in rows)
    return f"{right:.1f} / {fmean(stats.forwards(each).value for each in rows):.1f}"


def _pairs(judged: Sequence[Judged]) -> Table:
    """Compare the recommended sampler with every other on each model, corrected for the number of pairs."""
    pairs = [
        (one, rival) for one in judged for rival in one.tuned if rival != RECOMMENDED and one.ran(RECOMMENDED)
    ]
    accuracy = corrected([("", one.gap(rival, RECOMMENDED)) for one, rival in pairs])
    areas = corrected(
        [("", stats.aup_difference(one.areas[rival], one.areas[RECOMMENDED])) for one, rival in pairs],
        unit="tokens per forward",
    )
    rows = [
        (
            one.name,
            rival,
            by_accuracy.numbers,
            by_accuracy.verdict,
            stats.share(one.tuned[rival], one.tuned[RECOMMENDED], "forwards").shown(),
            by_area.numbers,
            by_area.verdict,
        )
        for (one, rival), by_accuracy, by_area in zip(pairs, accuracy, areas, strict=True)
    ]
    header = ("model", "rival", "accuracy", "more accurate", "% of its forwards", "AUP", "larger AUP")
    return Table("evidence-pairs", f"{RECOMMENDED} against every rival", header, tuple(rows))


def _ran(sampler: str, judged: Sequence[Judged]) -> bool:
    return all(sampler in one.tuned for one in judged)


def _known(judged: Sequence[Judged]) -> Table:
    """Return how well the models of each family and size solve each task."""
    kinds = by_kind(judged)
    rows = [
        (
            methods.title(task),
            *(
                f"{100 * fmean(one.tuned[RECOMMENDED][task].accuracy for one in group):.1f}"
                for group in kinds.values()
            ),
        )
        for task in judged[0].cells.tasks
    ]
    title = f"Accuracy of {RECOMMENDED} in percent, mean over seeds"
    return Table("evidence-accuracy", title, ("task", *kinds), tuple(rows))


def _by_task(judged: Sequence[Judged]) -> Table:
    gaps = task_gaps(judged)
    rivals = list(dict.fromkeys(rival for _, _, rival in gaps))
    rows = []
    for family, task in dict.fromkeys((family, task) for family, task, _ in gaps):
        cells = [gaps.get((family, task, rival)) for rival in rivals]
        shown = ["" if cell is None else f"{cell[1].shown(sign=True)} ({cell[0]})" for cell in cells]
        rows.append((family, methods.title(task), *shown))
    title = f"Points of {RECOMMENDED} to three rivals, mean over the models of a family (number of models)"
    header = ("family", "task", *(f"to {rival}" for rival in rivals))
    return Table("evidence-tasks", title, header, tuple(rows))


def _without_tasks(judged: Sequence[Judged]) -> Table:
    """Return what the rule recommends without each task."""
    rows = []
    for task in judged[0].cells.tasks:
        others = [one.without(task) for one in judged]
        advice = recommend(others, RECOMMENDED)
        order = ", ".join(f"{name} {advice.areas[name]:.2f}" for name in advice.ranked[:3])
        able = [one for group in most_seeds(others) for one in group if one.ran(RECOMMENDED, END_RULE)]
        gap = (
            pooled_gain([(one.tuned[END_RULE], one.tuned[RECOMMENDED]) for one in able]).shown(sign=True)
            if able
            else ""
        )
        rows.append((methods.title(task), order, advice.sampler, gap))
    sizes = ", ".join(dict.fromkeys(group[0].trained.size for group in most_seeds(judged)))
    gap = f"points of {RECOMMENDED} to {END_RULE}, {sizes}"
    header = ("without", "first three by the rule, mean AUP", "recommended", gap)
    return Table("evidence-without", "The rule without a task", header, tuple(rows))


def _bars(judged: Sequence[Judged]) -> Table:
    """Return the bars chosen with and without labels, and their difference in points."""
    rows = []
    for one in (one for one in judged if one.bars and one.ran(RECOMMENDED)):
        settings, bar = one.bar_settings, one.unlabelled_bar
        labelled = {label: f"{value:g}" for value, label in settings.items()}
        changed = ", ".join(
            f"{each.bar:g}: {100 * each.rate:.1f}" for each in one.bars if each.bar in settings
        )
        gap = stats.difference(one.tuned[RECOMMENDED], one.unlabelled)
        forwards = stats.forwards(one.cells.rows[settings[bar]])
        best = " / ".join(dict.fromkeys(labelled[label] for label in one.chosen[RECOMMENDED]))
        free = f"{choose_bar(one.bars, MAX_CHANGED).bar:g}"
        rows.append((one.name, changed, f"{bar:g}", free, best, gap.shown(2, sign=True), forwards.shown()))
    header = (
        "model",
        "bar: % of texts changed",
        "without labels",
        "of all bars",
        "with labels",
        "points between",
        "forwards",
    )
    return Table("evidence-bars", "The bar of confidence, with and without labels", header, tuple(rows))


def _picture(judged: Sequence[Judged], name: str) -> Picture:
    """Draw accuracy over forwards. `evidence` has only the size with the most seeds of each family."""
    groups = most_seeds(judged) if name == "evidence" else list(by_kind(judged).values())

    def draw() -> Figure:
        figure, axes = drawing.panels(len(groups), width=5.2, height=3.8)
        for panel, group in zip(axes, groups, strict=True):
            _draw_band(panel, group)
            trained, seeds = group[0].trained, "1 seed" if len(group) == 1 else f"{len(group)} seeds"
            panel.set_title(f"{trained.family}, {trained.size}, {seeds}")
        drawing.legend(figure, axes[0], columns=4)
        return figure

    caption = "Accuracy over forward passes at every setting: mean over seeds, and the range of the seeds."
    return Picture(name, caption, draw)


def _draw_band(panel: Axes, group: Sequence[Judged]) -> None:
    drawing.accuracy_axis(panel)
    for method in [method for method in group[0].methods if all(one.ran(method.label) for one in group)]:
        places = []
        for label in method.swept:
            seeds = [one.cells.rows[label] for one in group]
            cost = fmean(stats.macro({t: o.forwards for t, o in rows.items()}) for rows in seeds)
            right = [100 * stats.macro({t: o.accuracy for t, o in rows.items()}) for rows in seeds]
            places.append((cost, fmean(right), min(right), max(right)))
        across, middle, low, high = zip(*sorted(places), strict=True)
        look = drawing.look(method.label)
        panel.plot(across, middle, label=method.label, linewidth=1.2, **look)
        panel.fill_between(across, low, high, color=look["color"], alpha=0.15, linewidth=0)
    drawing.log_axis(panel)
    panel.set_xlabel("forward passes per sample (log)")
