"""Tables, figures and findings of `evidence`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from statistics import fmean
from typing import TYPE_CHECKING

from unmask.evals.agreement import MAX_CHANGED, Agreement
from unmask.evals.agreement import choose as choose_bar
from unmask.experiments import drawing, methods, stats
from unmask.experiments.frontier import choose
from unmask.experiments.frontier_study import Method
from unmask.experiments.grid import Cells, numbers
from unmask.experiments.lab import Lab
from unmask.experiments.ranking import agreement, spearman
from unmask.experiments.recommendation import recommend
from unmask.experiments.report import Finding, Picture, Report, Table, Verdict, corrected
from unmask.experiments.runs import Outcome
from unmask.training.grid import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DEV, TEST = "dev", "test"
RECOMMENDED, BASE, GATED, UNGATED = "First mask", "Base", "LESS", "LESS, confidence only"
RIVAL_ORDERS = (BASE, "Threshold, end rule", "First mask, accurate")  # orders that are not left to right
KEPT = 1.0  # points; less is no loss
SAME_RANKING = 0.6  # Kendall's tau
Outcomes = Mapping[str, Outcome]  # by task


@dataclass(frozen=True)
class Judged:
    """A model of the grid: the chosen settings and the curves of its samplers."""

    trained: Trained
    cells: Cells
    study: Sequence[Method]
    bars: Sequence[Agreement]

    @property
    def name(self) -> str:
        """Its name in tables, without the hash."""
        return f"{self.trained.family}-{self.trained.size}-{self.trained.seed}"

    def rows(self, part: str) -> dict[str, Outcomes]:
        """Return the outcomes of a part, by setting."""
        prefix = f"{part}/"
        found = self.cells.rows.items()
        return {label.removeprefix(prefix): one for label, one in found if label.startswith(prefix)}

    @cached_property
    def chosen(self) -> dict[str, str]:
        """The setting of each sampler that is best on the dev items."""
        rows = self.rows(DEV)
        return {method.label: choose(rows, list(method.swept)) for method in self.study}

    @cached_property
    def tuned(self) -> dict[str, Outcomes]:
        """Each sampler on the test items, at its chosen setting."""
        rows = self.rows(TEST)
        return {method: rows[setting] for method, setting in self.chosen.items()}

    @cached_property
    def areas(self) -> dict[str, stats.Area]:
        """The accuracy under parallelism of each sampler."""
        rows = self.rows(TEST)
        return stats.aup(
            {method.label: stats.curve([rows[label] for label in method.swept]) for method in self.study}
        )

    def gap(self, first: str, second: str) -> stats.Estimate:
        """Return the tuned accuracy of the second sampler minus that of the first, in points."""
        return stats.difference(self.tuned[first], self.tuned[second])


def build(
    lab: Lab,
    study: Sequence[Method],
    all_cells: Sequence[Cells],
    bars: Mapping[str, Sequence[Agreement]],
) -> Report:
    """Return the report."""
    judged = [Judged(lab.grid[cells.model], cells, study, bars[cells.model]) for cells in all_cells]
    rule, recommended = recommend(judged)
    return Report(
        tables=(_models(judged), rule, _tuned(judged), _pairs(judged), _by_task(judged), _bars(judged)),
        pictures=(_picture(judged, "evidence"), _picture(judged, "evidence-sizes")),
        notes=(recommended,),
        findings=(
            *_on_the_frontier(judged),
            *_loses(judged),
            *_gate(judged),
            *_without_labels(judged),
            *_rankings(judged),
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
    """Return accuracy, forwards and AUP of every sampler, tuned on the dev items."""
    rows, data = [], []
    for one in judged:
        for method, outcomes in one.tuned.items():
            rows.append(
                (
                    one.name,
                    method,
                    one.chosen[method].rpartition(", ")[2],
                    stats.accuracy(outcomes).shown(),
                    stats.forwards(outcomes).shown(),
                    stats.aup_estimate(one.areas[method]).shown(2),
                )
            )
        data += numbers(Cells(one.name, one.rows(TEST)))
    header = ("model", "sampler", "setting", "accuracy, %", "forwards", "AUP")
    return Table("evidence", "Every sampler, tuned on other items", header, tuple(rows), tuple(data))


def _pairs(judged: Sequence[Judged]) -> Table:
    """Return the recommended sampler against every other, corrected for the number of pairs."""
    pairs = [(one, rival) for one in judged for rival in one.tuned if rival != RECOMMENDED]
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


def _on_the_frontier(judged: Sequence[Judged]) -> list[Finding]:
    """Test for every model that no sampler of at most its forwards is more accurate."""
    cheap = [
        (one, rival)
        for one in judged
        for rival in one.tuned
        if rival != RECOMMENDED
        and stats.share(one.tuned[RECOMMENDED], one.tuned[rival], "forwards").value <= 100
    ]
    tests = corrected([(rival, one.gap(rival, RECOMMENDED)) for one, rival in cheap])
    found = []
    for one in judged:
        mine = [test for (other, _), test in zip(cheap, tests, strict=True) if other is one]
        verdicts = {test.verdict for test in mine}
        verdict: Verdict = (
            "does not hold"
            if "does not hold" in verdicts
            else "undecided"
            if "undecided" in verdicts
            else "holds"
        )
        against = "; ".join(f"to {test.statement} {test.numbers}" for test in mine)
        statement = f"{one.name}: no sampler of at most its forwards is more accurate than {RECOMMENDED}"
        found.append(Finding(statement, verdict, against or "every rival needs more forwards"))
    return found


def _families(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for one in judged:
        found.setdefault(one.trained.family, []).append(one)
    return found


def _task_gaps(judged: Sequence[Judged]) -> dict[tuple[str, str, str], stats.Estimate]:
    """Return the points of the recommended sampler to other orders, by family, task and rival.

    The difference on an item is its mean over the models of a family, so models do not count as new items.
    """
    gaps = {}
    for family, group in _families(judged).items():
        for task, rival in product(
            group[0].cells.tasks, [name for name in RIVAL_ORDERS if name in group[0].tuned]
        ):
            items: dict[str, list[float]] = {}
            for one in group:
                theirs = {record.id: record.correct for record in one.tuned[rival][task].records}
                for record in one.tuned[RECOMMENDED][task].records:
                    items.setdefault(record.id, []).append(record.correct - theirs[record.id])
            gaps[family, task, rival] = stats.mean([fmean(item) for item in items.values()]).scaled(100)
    return gaps


def _by_task(judged: Sequence[Judged]) -> Table:
    gaps = _task_gaps(judged)
    rivals = list(dict.fromkeys(rival for _, _, rival in gaps))
    rows = [
        (family, methods.title(task), *(gaps[family, task, rival].shown(sign=True) for rival in rivals))
        for family, task in dict.fromkeys((family, task) for family, task, _ in gaps)
    ]
    title = f"Points of {RECOMMENDED} to samplers of another order, mean over the models of a family"
    return Table(
        "evidence-tasks", title, ("family", "task", *(f"to {rival}" for rival in rivals)), tuple(rows)
    )


def _loses(judged: Sequence[Judged]) -> list[Finding]:
    """Return the tasks where another order is better for sure, and how many comparisons are left open."""
    gaps = _task_gaps(judged)
    claims = [
        (f"{family}: {rival} is more accurate than {RECOMMENDED} on {methods.title(task)}", gap.scaled(-1))
        for (family, task, rival), gap in gaps.items()
    ]
    tests = corrected(claims)
    lost = [test for test in tests if test.verdict == "holds"]
    counts = {
        word: sum(test.verdict == word for test in tests) for word in ("holds", "does not hold", "undecided")
    }
    verdict: Verdict = "holds" if lost else "undecided" if counts["undecided"] else "does not hold"
    told = ", ".join(f"{word}: {count}" for word, count in counts.items())
    return [Finding(f"another order beats {RECOMMENDED} on some task", verdict, told), *lost]


def _gate(judged: Sequence[Judged]) -> list[Finding]:
    """Test whether LESS's gate earns accuracy at the same bar, and whether that depends on the model."""
    able = [one for one in judged if {GATED, UNGATED} <= set(one.tuned)]
    if not able:
        return []
    gaps = []
    for one in able:
        setting = one.chosen[GATED].removeprefix(GATED)
        rows = one.rows(TEST)
        gaps.append(stats.difference(rows[UNGATED + setting], rows[GATED + setting]))
    claims = [
        (f"{one.name}: the gate of {GATED} gains accuracy at the same bar", gap)
        for one, gap in zip(able, gaps, strict=True)
    ]
    found = corrected(claims)
    if len(able) > 3:
        quality = [stats.accuracy(one.tuned[BASE]).value for one in able]
        trend, p = spearman(quality, [gap.value for gap in gaps])
        verdict: Verdict = "undecided" if p >= 0.05 else "holds" if trend < 0 else "does not hold"
        numbers = f"Spearman {trend:+.2f} over {len(able)} models, permutation p = {p:.2g}"
        found.append(Finding("the gate gains more on worse models", verdict, numbers))
    return found


def _swept_bars(one: Judged) -> dict[float, str]:
    """Return the settings of the recommended sampler by their bar."""
    method = next(method for method in one.study if method.label == RECOMMENDED)
    assert method.sweep is not None
    return dict(zip(method.sweep[1], method.swept, strict=True))


def _bar_without_labels(one: Judged) -> float:
    settings = _swept_bars(one)
    return choose_bar([bar for bar in one.bars if bar.bar in settings], MAX_CHANGED).bar


def _bars(judged: Sequence[Judged]) -> Table:
    """Return the bars chosen with and without labels, and the points between them."""
    rows = []
    for one in judged:
        settings, bar = _swept_bars(one), _bar_without_labels(one)
        labelled = next(value for value, label in settings.items() if label == one.chosen[RECOMMENDED])
        changed = ", ".join(
            f"{each.bar:g}: {100 * each.rate:.1f}" for each in one.bars if each.bar in settings
        )
        gap = _gap_without_labels(one)
        forwards = stats.forwards(one.rows(TEST)[settings[bar]])
        rows.append(
            (one.name, changed, f"{bar:g}", f"{labelled:g}", gap.shown(2, sign=True), forwards.shown())
        )
    header = (
        "model",
        "bar: % of texts changed",
        "without labels",
        "best on dev",
        "points between",
        "forwards",
    )
    return Table("evidence-bars", "The bar of confidence, with and without labels", header, tuple(rows))


def _gap_without_labels(one: Judged) -> stats.Estimate:
    rows = one.rows(TEST)
    return stats.difference(one.tuned[RECOMMENDED], rows[_swept_bars(one)[_bar_without_labels(one)]])


def _without_labels(judged: Sequence[Judged]) -> list[Finding]:
    claims = [
        (
            f"{one.name}: the bar without labels is at most {KEPT:g} point below the best on dev items",
            _gap_without_labels(one),
        )
        for one in judged
    ]
    return corrected(claims, -KEPT)


def _rankings(judged: Sequence[Judged]) -> list[Finding]:
    """Test whether samplers rank alike, by AUP, in other seeds and sizes, where models rank them at all."""
    claims = []
    for family, group in _families(judged).items():
        sizes: dict[str, list[Judged]] = {}
        for one in sorted(group, key=lambda one: one.trained.parameters):
            if len({area for area, _ in one.areas.values()}) > 1:
                sizes.setdefault(one.trained.size, []).append(one)
        for small, large in [*((size, size) for size in sizes), *combinations(sizes, 2)]:
            both = combinations(sizes[small], 2) if small == large else product(sizes[small], sizes[large])
            pairs = [(list(first.areas.values()), list(second.areas.values())) for first, second in both]
            where = f"other seeds of {small}" if small == large else f"{small} and {large}"
            if pairs:
                claims.append((f"{family}: samplers rank alike in {where}", agreement(pairs)))
    return corrected(claims, SAME_RANKING, unit="Kendall's tau")


def _picture(judged: Sequence[Judged], name: str) -> Picture:
    """Draw accuracy over forwards: a panel per family at the size with most seeds, or per family and size."""
    groups: list[list[Judged]] = []
    for family in _families(judged).values():
        sizes: dict[str, list[Judged]] = {}
        for one in sorted(family, key=lambda one: one.trained.parameters):
            sizes.setdefault(one.trained.size, []).append(one)
        most = max(map(len, sizes.values()))
        largest = [group for group in sizes.values() if len(group) == most][-1:]
        groups += largest if name == "evidence" else sizes.values()

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
    for method in group[0].study:
        places = []
        for label in method.swept:
            seeds = [one.rows(TEST)[label] for one in group]
            cost = fmean(stats.macro({t: o.forwards for t, o in rows.items()}) for rows in seeds)
            right = [100 * stats.macro({t: o.accuracy for t, o in rows.items()}) for rows in seeds]
            places.append((cost, fmean(right), min(right), max(right)))
        across, middle, low, high = zip(*sorted(places), strict=True)
        look = drawing.look(method.label)
        panel.plot(across, middle, label=method.label, linewidth=1.2, **look)
        panel.fill_between(across, low, high, color=look["color"], alpha=0.15, linewidth=0)
    drawing.log_axis(panel)
    panel.set_xlabel("forward passes per sample (log)")
