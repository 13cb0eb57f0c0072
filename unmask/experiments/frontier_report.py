"""Tables, figure and findings of `frontier`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unmask.experiments import drawing, methods, stats
from unmask.experiments.frontier_study import SEARCH, Claim, Study
from unmask.experiments.grid import Cells, numbers, short
from unmask.experiments.lab import Lab
from unmask.experiments.pareto import frontier
from unmask.experiments.report import Finding, Picture, Report, Table, above, below, flat
from unmask.experiments.runs import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WITH_END_RULE, WITH_FIRST, WITH_BOTH = " + end rule", " + first mask", " + both"
TUNED = "tuned"
BASE = "Base"
GLANCE = (BASE, "Threshold 0.9", "Entropy bound", "KLASS", "LESS", "First mask")
KEPT = 1.0  # points; a method that loses less keeps its accuracy
KINDS = ("authors' setting", "with the end rule", "tuned on other items")  # the kinds of points
Outcomes = Mapping[str, Outcome]  # by task


def part(cells: Cells, name: str) -> Cells:
    """Return the rows of one part of the runs."""
    prefix = f"{name}/"
    rows = {label.removeprefix(prefix): row for label, row in cells.rows.items() if label.startswith(prefix)}
    return Cells(cells.model, rows)


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the main table, and its place in the figure."""

    method: str
    kind: str
    setting: str
    outcomes: Outcomes

    @property
    def place(self) -> tuple[float, float]:
        """Macro forwards, and macro accuracy in percent."""
        cost = stats.macro({task: one.forwards for task, one in self.outcomes.items()})
        return cost, 100 * stats.macro({task: one.accuracy for task, one in self.outcomes.items()})


def points(study: Study, cells: Cells) -> dict[str, Point]:
    """Return every sampler and setting on the test items, by label."""
    published, ruled, chosen = KINDS
    authors, tuned = part(cells, "authors").rows, part(cells, TUNED).rows
    found = {}
    for method in study.methods:
        kind = ruled if method.end_rule else published
        found[method.label] = Point(method.label, kind, "authors'", authors[method.label])
        if not method.end_rule:
            label = method.label + WITH_END_RULE
            found[label] = Point(method.label, ruled, "authors'", authors[label])
        for label in method.swept:
            if label in tuned:
                found[label] = Point(method.label, chosen, label.rpartition(", ")[2], tuned[label])
    return found


def build(study: Study, lab: Lab, all_cells: Sequence[Cells]) -> Report:
    """Return the report."""
    tables = [[_main(study, cells), _swept(study, cells), _worth(study, cells)] for cells in all_cells]
    return Report(
        tables=(*flat(tables), _held_out(study, all_cells), _lossless(study, all_cells)),
        pictures=(_picture(study, all_cells),),
        findings=flat([_findings(study, cells) for cells in all_cells]),
        glance=_glance(study, all_cells),
    )


def _glance(study: Study, all_cells: Sequence[Cells]) -> Table:
    """Return accuracy and forwards of a few samplers. The title compares the recommended one with Base."""
    models = [short(cells.model) for cells in all_cells]
    found = [points(study, cells) for cells in all_cells]
    pairs = [(one[BASE].outcomes, one[study.recommended].outcomes) for one in found]
    won = [
        f"{stats.difference(*pair).shown(sign=True)} points for "
        f"{stats.share(*pair, 'forwards').shown()} % of the forwards on {model}"
        for model, pair in zip(models, pairs, strict=True)
    ]
    rows = [(label, *flat([_cost(one[label]) for one in found])) for label in found[0] if label in GLANCE]
    header = ("sampler", *flat([(f"{model}: accuracy, %", "forwards") for model in models]))
    return Table("glance", f"{study.recommended} against {BASE}: {', '.join(won)}.", header, tuple(rows))


def _cost(point: Point) -> tuple[str, str]:
    return stats.accuracy(point.outcomes).shown(), stats.forwards(point.outcomes).shown()


def _main(study: Study, cells: Cells) -> Table:
    """Return the table of all samplers, cheapest first, against the reference and the recommended one."""
    found = points(study, cells)
    kept = frontier({label: point.place for label, point in found.items()})
    rows = [_main_row(study, found, label, label in kept) for label in _by_cost(found)]
    header = (
        "sampler",
        "setting",
        "end rule",
        "on the frontier",
        "mean accuracy, %",
        "forwards",
        f"points to {study.reference}",
        f"points to {study.recommended}",
    )
    title = f"{short(cells.model)}: all samplers on the test items, cheapest first"
    data = numbers(
        Cells(cells.model, {label: point.outcomes for label, point in found.items()}), study.reference
    )
    return Table(f"frontier-{short(cells.model)}", title, header, tuple(rows), tuple(data))


def _by_cost(found: Mapping[str, Point]) -> list[str]:
    return sorted(found, key=lambda label: (found[label].place, label))


def _main_row(study: Study, found: Mapping[str, Point], label: str, kept: bool) -> tuple[str, ...]:
    point = found[label]
    return (
        point.method,
        point.setting,
        "yes" if point.kind == KINDS[1] else "",
        "yes" if kept else "",
        stats.accuracy(point.outcomes).shown(),
        stats.forwards(point.outcomes).shown(),
        *(_points_to(found, label, other) for other in (study.reference, study.recommended)),
    )


def _points_to(found: Mapping[str, Point], label: str, other: str) -> str:
    if label == other:
        return ""
    return stats.difference(found[other].outcomes, found[label].outcomes).shown(sign=True)


def _swept(study: Study, cells: Cells) -> Table:
    """Return the sweeps on the dev items: accuracy @ forwards of every value."""
    swept, tuned = part(cells, "sweep"), part(cells, TUNED).rows
    places = {label: Point("", "", "", outcomes).place for label, outcomes in swept.rows.items()}
    kept = frontier(places)
    rows = []
    for method in study.methods:
        if method.sweep is None:
            continue
        field, values = method.sweep
        labels = dict(zip(method.swept, values, strict=True))
        tried = ", ".join(f"{labels[one]:g}: {places[one][1]:.1f} @ {places[one][0]:.1f}" for one in labels)
        best = ", ".join(f"{value:g}" for one, value in labels.items() if one in tuned)
        front = ", ".join(f"{value:g}" for one, value in labels.items() if one in kept)
        rows.append((method.label, f"`{field}`", tried, best, front))
    header = ("sampler", "field", "value: accuracy, % @ forwards", "best", "on the frontier of all")
    title = f"{short(cells.model)}: sweeps on the dev items"
    return Table(f"frontier-sweep-{short(cells.model)}", title, header, tuple(rows), tuple(numbers(swept)))


def _worth(study: Study, cells: Cells) -> Table:
    """Return what the end rule and the first mask as fallback are worth, paired with the plain sampler."""
    mine, rows = part(cells, "end rule"), []
    for label in study.with_fallback:
        plain = mine.rows[label]
        for variant in ("", WITH_END_RULE, WITH_FIRST, WITH_BOTH):
            outcomes = mine.rows[label + variant]
            accuracy, forwards = stats.accuracy(outcomes).shown(), stats.forwards(outcomes).shown()
            gap, cost = "", ""
            if variant:
                gap = stats.difference(plain, outcomes).shown(2, sign=True)
                cost = stats.share(plain, outcomes, "forwards").shown()
            rows.append((label + variant, accuracy, forwards, gap, cost))
    header = ("sampler", "mean accuracy, %", "forwards", "points to it as published", "% of its forwards")
    title = f"{short(cells.model)}: the end rule, and the first mask as fallback"
    return Table(f"frontier-end-rule-{short(cells.model)}", title, header, tuple(rows), tuple(numbers(mine)))


def _held_out(study: Study, all_cells: Sequence[Cells]) -> Table:
    """Return the figures on the held-out items beside those of the search, which had other items."""
    rows = []
    for cells in all_cells:
        mine = part(cells, "held-out").rows
        for label in study.held_out:
            ours = (stats.accuracy(mine[label]), stats.forwards(mine[label]))
            theirs = SEARCH.get(short(cells.model), {}).get(label)
            beside: tuple[str, ...] = ("", "", "", "")
            if theirs is not None:
                gaps = [stats.independent(*pair) for pair in zip(theirs, ours, strict=True)]
                beside = (theirs[0].shown(), gaps[0].shown(2, sign=True))
                beside += (theirs[1].shown(2), gaps[1].shown(2, sign=True))
            rows.append(
                (short(cells.model), label, ours[0].shown(), *beside[:2], ours[1].shown(2), *beside[2:])
            )
    header = (
        "model",
        "sampler",
        "accuracy, %",
        "in the search",
        "points",
        "forwards",
        "in the search",
        "more",
    )
    return Table("frontier-held-out", "Held-out items, here and in the search", header, tuple(rows))


def _lossless(study: Study, all_cells: Sequence[Cells]) -> Table:
    """Return how many texts match the promised ones, and the share of the forwards."""
    rows = []
    for cells in all_cells:
        mine = part(cells, "lossless").rows
        for method, promised in study.lossless:
            ours, theirs = mine[method.label], mine[promised.label]
            same = sum(_same(theirs[task], ours[task]) for task in ours)
            total = sum(len(one.records) for one in ours.values())
            rows.append(
                (
                    short(cells.model),
                    method.label,
                    promised.label,
                    f"{same} of {total}",
                    stats.forwards(ours).shown(),
                    stats.share(theirs, ours, "forwards").shown(),
                )
            )
    header = ("model", "sampler", "promises the texts of", "same texts", "forwards", "% of its forwards")
    return Table("frontier-lossless", "Samplers that promise the texts of another", header, tuple(rows))


def _same(first: Outcome, second: Outcome) -> int:
    texts = {record.id: record.text for record in first.records}
    return sum(texts[record.id] == record.text for record in second.records)


def _findings(study: Study, cells: Cells) -> tuple[Finding, ...]:
    rows = part(cells, "authors").rows
    return flat([_judge(claim, short(cells.model), rows) for claim in study.claims])


def _judge(claim: Claim, model: str, rows: Mapping[str, Outcomes]) -> list[Finding]:
    """Test a claim on the test items at the authors' settings, or nothing if no task is in its category."""
    mine, other = (_only(rows[label], claim.category) for label in (claim.label, claim.than))
    if not mine:
        return []
    where = "" if claim.category is None else f" on {claim.category}"
    gap = stats.difference(other, mine)
    if claim.gains:
        found = [above(f"{model}: {claim.label} is more accurate than {claim.than}{where}", gap)]
    else:
        kept = f"{model}: {claim.label} is at most {KEPT:g} point below {claim.than}{where}"
        found = [above(kept, gap, -KEPT)]
    if claim.speedup is not None:
        bar = round(100 / claim.speedup, 1)
        statement = f"{model}: {claim.label} needs at most {bar:g} % of the forwards of {claim.than}{where}"
        found.append(below(statement, stats.share(other, mine, "forwards"), bar, unit="%"))
    return found


def _only(outcomes: Outcomes, category: str | None) -> Outcomes:
    """Return the outcomes on the tasks of a category, or on all."""
    return {task: one for task, one in outcomes.items() if category in (None, methods.category(task))}


def _picture(study: Study, all_cells: Sequence[Cells]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(all_cells), width=9.5, height=6.4, columns=1)
        for panel, cells in zip(axes, all_cells, strict=True):
            found = points(study, cells)
            _draw_points(panel, found)
            told = [label for label in ("First mask", "LESS", "Base") if label in found]
            parts = [
                f"{label} {found[label].place[1]:.1f} % at {found[label].place[0]:.1f}" for label in told
            ]
            drawing.title(panel, short(cells.model), f"{', '.join(parts)} forwards")
        drawing.legend(figure, axes[0], columns=4)
        for panel, cells in zip(axes, all_cells, strict=True):
            found = points(study, cells)
            named = {method.label: found[method.label].place for method in study.methods}
            drawing.name_points(figure, panel, named)
        return figure

    caption = (
        "Macro accuracy over forward passes of every sampler; up and left is better. Full markers are at the "
        "authors' setting. A thin line joins the settings of a sampler."
    )
    return Picture("frontier", caption, draw)


def _draw_points(panel: Axes, found: Mapping[str, Point]) -> None:
    """Draw the settings of each sampler, joined by lines, and the frontier."""
    places = {label: point.place for label, point in found.items()}
    drawing.accuracy_axis(panel)
    for method in dict.fromkeys(point.method for point in found.values()):
        own = [places[label] for label, point in found.items() if point.method == method]
        panel.plot(*zip(*own, strict=True), color=drawing.colour(method), linewidth=0.7, alpha=0.5, zorder=1)
    for label, point in found.items():
        panel.plot(*point.place, linestyle="", **_look(point, label == point.method))
    best = [places[label] for label in frontier(places)]
    panel.plot(*zip(*best, strict=True), color="#000000", linewidth=1.2, label="frontier", zorder=2)
    for kind in KINDS:  # for the legend
        black = {"color": "#000000", "markerfacecolor": "white" if kind == KINDS[1] else "#000000"}
        panel.plot([], [], linestyle="", label=kind, **{**_look(Point("", kind, "", {}), False), **black})
    drawing.log_axis(panel)
    panel.set_xlabel("forward passes per sample (log)")


def _look(point: Point, published: bool) -> dict[str, Any]:
    """Return the marker of a point: full as published, hollow with the end rule, small where tuned."""
    look = drawing.look(point.method, filled=published or point.kind != KINDS[1])
    return {**look, "markersize": 3} if point.kind == KINDS[2] else look
