"""Tables, figures and findings of `evidence`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

RECOMMENDED, BASE, GATED, UNGATED = "First mask", "Base", "LESS", "LESS, confidence only"
RIVAL_ORDERS = (BASE, "Threshold, end rule", "First mask, accurate")  # orders that are not left to right
KEPT = 1.0  # points; less is no loss
HALVES = (0, 1)
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

    @cached_property
    def methods(self) -> list[Method]:
        """The samplers that ran on it."""
        return [method for method in self.study if set(method.swept) <= set(self.cells.rows)]

    @cached_property
    def chosen(self) -> dict[str, list[str]]:
        """The settings of each sampler for the first half of the items and for the second."""
        return {method.label: [self._best(method, 1 - half) for half in HALVES] for method in self.methods}

    def _best(self, method: Method, half: int) -> str:
        """Return the setting of a sampler that is best on a half of the items; of all, if it is empty."""
        rows = {label: self.cells.rows[label] for label in method.swept}
        halves = {
            label: {task: one for task, one in _half(outcomes, half).items() if one.records}
            for label, outcomes in rows.items()
        }
        return choose(halves if all(halves.values()) else rows, list(method.swept))

    @cached_property
    def tuned(self) -> dict[str, Outcomes]:
        """Each sampler at its chosen settings."""
        return {method: self.at(settings) for method, settings in self.chosen.items()}

    def at(self, settings: Sequence[str]) -> Outcomes:
        """Return the outcomes of the first half of the items at a setting, of the second half at another."""
        parts = [_half(self.cells.rows[label], half) for half, label in zip(HALVES, settings, strict=True)]
        return {
            task: replace(one, records=tuple(record for part in parts for record in part[task].records))
            for task, one in self.cells.rows[settings[0]].items()
        }

    @cached_property
    def areas(self) -> dict[str, stats.Area]:
        """The accuracy under parallelism of each sampler."""
        rows = self.cells.rows
        return stats.aup(
            {method.label: stats.curve([rows[label] for label in method.swept]) for method in self.methods}
        )

    def gap(self, first: str, second: str) -> stats.Estimate:
        """Return the tuned accuracy of the second sampler minus that of the first, in points."""
        return stats.difference(self.tuned[first], self.tuned[second])

    @property
    def ungated(self) -> Outcomes:
        """LESS without its gate, at the bars that were chosen for LESS."""
        return self.at([UNGATED + setting.removeprefix(GATED) for setting in self.chosen[GATED]])


def _half(outcomes: Outcomes, half: int) -> dict[str, Outcome]:
    """Return every second item of each task, by id."""
    return {
        task: replace(one, records=tuple(sorted(one.records, key=lambda record: record.id)[half::2]))
        for task, one in outcomes.items()
    }


def build(
    lab: Lab,
    study: Sequence[Method],
    all_cells: Sequence[Cells],
    bars: Mapping[str, Sequence[Agreement]],
) -> Report:
    """Return the report."""
    judged = [Judged(lab.grid[cells.model], cells, study, bars[cells.model]) for cells in all_cells]
    rule, recommended = recommend(judged, RECOMMENDED)
    return Report(
        tables=(
            _models(judged),
            rule,
            _against_all(RECOMMENDED, _sizes(judged), "evidence-by-size"),
            *_main_tables(judged),
            *([_against_all(GATED, _kinds(judged), "evidence-less")] if _ran(GATED, judged) else []),
            *([_known(judged)] if _ran(RECOMMENDED, judged) else []),
            _by_task(judged),
            _bars(judged),
            _tuned(judged),
            _pairs(judged),
        ),
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
    """Return accuracy, forwards and AUP of every sampler, tuned on the other half of the items."""
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
    """Return a sampler against every other, over the models of a group."""
    groups = [
        (label, rival, [one for one in group if {rival, sampler} <= set(one.tuned)])
        for label, group in models.items()
        for rival in dict.fromkeys(other for one in group for other in one.tuned)
        if rival != sampler
    ]
    groups = [(label, rival, group) for label, rival, group in groups if group]
    tests = corrected(
        [("", _pooled([(one.tuned[rival], one.tuned[sampler]) for one in each])) for _, rival, each in groups]
    )
    rows = []
    for (label, rival, group), test in zip(groups, tests, strict=True):
        shares = [stats.share(one.tuned[rival], one.tuned[sampler], "forwards").value for one in group]
        rows.append((label, rival, str(len(group)), test.numbers, test.verdict, f"{fmean(shares):.0f}"))
    header = ("models", "rival", "number", "accuracy", "more accurate", "% of its forwards")
    title = f"{sampler} against every rival, mean over models"
    return Table(name, title, header, tuple(rows))


def _main_tables(judged: Sequence[Judged]) -> list[Table]:
    """Return the main table of the paper for each family, at the size with most seeds."""
    found = []
    for group in _most_seeds(judged):
        samplers = [label for label in group[0].tuned if all(label in one.tuned for one in group)]
        rows = [
            (methods.title(task), *(_mean_cell(group, label, [task]) for label in samplers))
            for task in group[0].cells.tasks
        ]
        rows.append(("mean", *(_mean_cell(group, label, group[0].cells.tasks) for label in samplers)))
        [name] = _kinds(group)
        title = f"{name}: accuracy in % / forwards of every sampler, mean over {len(group)} seeds"
        found.append(Table(f"evidence-main-{name}", title, ("task", *samplers), tuple(rows)))
    return found


def _mean_cell(group: Sequence[Judged], sampler: str, tasks: Sequence[str]) -> str:
    """Return the accuracy and the forwards of a sampler on some tasks, averaged over models."""
    rows = [{task: one.tuned[sampler][task] for task in tasks} for one in group]
    right = fmean(stats.accuracy(each).value for each in rows)
    return f"{right:.1f} / {fmean(stats.forwards(each).value for each in rows):.1f}"


def _pooled(pairs: Sequence[tuple[Outcomes, Outcomes]]) -> stats.Estimate:
    """Return what the second of each pair gains, in points. An item counts once, by its mean over pairs."""
    return stats.macro_gain(
        {
            task: [stats.gains(first[task].records, second[task].records) for first, second in pairs]
            for task in pairs[0][0]
        }
    )


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


def _sizes(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: one.trained.parameters):
        found.setdefault(one.trained.size, []).append(one)
    return found


def _kinds(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Return the models of each family and size."""
    return {
        f"{family}-{size}": group
        for size, both in _sizes(judged).items()
        for family, group in _families(both).items()
    }


def _most_seeds(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Return the models of one size for each family: the one with most seeds, of equals the largest."""
    groups = sorted(_kinds(judged).values(), key=len)
    return list({group[0].trained.family: group for group in groups}.values())


def _ran(sampler: str, judged: Sequence[Judged]) -> bool:
    return all(sampler in one.tuned for one in judged)


def _task_gaps(judged: Sequence[Judged]) -> dict[tuple[str, str, str], stats.Estimate]:
    """Return the points of the recommended sampler to other orders, by family, task and rival.

    The difference on an item is its mean over the models of a family, so models do not count as new items.
    """
    gaps = {}
    for family, group in _families(judged).items():
        for task, rival in product(group[0].cells.tasks, RIVAL_ORDERS):
            items: dict[str, list[float]] = {}
            for one in (one for one in group if {rival, RECOMMENDED} <= set(one.tuned)):
                theirs = {record.id: record.correct for record in one.tuned[rival][task].records}
                for record in one.tuned[RECOMMENDED][task].records:
                    items.setdefault(record.id, []).append(record.correct - theirs[record.id])
            if items:
                gaps[family, task, rival] = stats.mean([fmean(item) for item in items.values()]).scaled(100)
    return gaps


def _known(judged: Sequence[Judged]) -> Table:
    """Return how well the models of each family and size solve each task."""
    kinds = _kinds(judged)
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
    gaps = [stats.difference(one.ungated, one.tuned[GATED]) for one in able]
    claims = [
        (f"{one.name}: the gate of {GATED} gains accuracy at the same bar", gap)
        for one, gap in zip(able, gaps, strict=True)
    ]
    claims += [
        (
            f"all {size} models: the gate of {GATED} gains accuracy at the same bar",
            _pooled([(one.ungated, one.tuned[GATED]) for one in group]),
        )
        for size, group in _sizes(able).items()
        if len(group) > 1
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
    for one in _with_bars(judged):
        settings, bar = _swept_bars(one), _bar_without_labels(one)
        labelled = {label: f"{value:g}" for value, label in settings.items()}
        changed = ", ".join(
            f"{each.bar:g}: {100 * each.rate:.1f}" for each in one.bars if each.bar in settings
        )
        gap = _gap_without_labels(one)
        forwards = stats.forwards(one.cells.rows[settings[bar]])
        best = " / ".join(dict.fromkeys(labelled[label] for label in one.chosen[RECOMMENDED]))
        rows.append((one.name, changed, f"{bar:g}", best, gap.shown(2, sign=True), forwards.shown()))
    header = (
        "model",
        "bar: % of texts changed",
        "without labels",
        "with labels",
        "points between",
        "forwards",
    )
    return Table("evidence-bars", "The bar of confidence, with and without labels", header, tuple(rows))


def _with_bars(judged: Sequence[Judged]) -> list[Judged]:
    """Return the models whose texts were compared at several bars."""
    return [one for one in judged if one.bars and RECOMMENDED in one.tuned]


def _without(one: Judged) -> Outcomes:
    """Return the recommended sampler at the bar that was chosen without labels."""
    return one.cells.rows[_swept_bars(one)[_bar_without_labels(one)]]


def _gap_without_labels(one: Judged) -> stats.Estimate:
    return stats.difference(one.tuned[RECOMMENDED], _without(one))


def _without_labels(judged: Sequence[Judged]) -> list[Finding]:
    able = _with_bars(judged)
    words = f"the bar without labels is at most {KEPT:g} point below the one with labels"
    claims = [(f"{one.name}: {words}", _gap_without_labels(one)) for one in able]
    if len(able) > 1:
        pairs = [(one.tuned[RECOMMENDED], _without(one)) for one in able]
        claims.append((f"all models: {words}", _pooled(pairs)))
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
            pairs = [_shared_areas(first, second) for first, second in both]
            where = f"other seeds of {small}" if small == large else f"{small} and {large}"
            if pairs:
                claims.append((f"{family}: samplers rank alike in {where}", agreement(pairs)))
    return corrected(claims, SAME_RANKING, unit="Kendall's tau")


def _shared_areas(first: Judged, second: Judged) -> tuple[list[stats.Area], list[stats.Area]]:
    """Return the AUPs of the samplers that ran on both models."""
    shared = [name for name in first.areas if name in second.areas]
    return [first.areas[name] for name in shared], [second.areas[name] for name in shared]


def _picture(judged: Sequence[Judged], name: str) -> Picture:
    """Draw accuracy over forwards: a panel per family at the size with most seeds, or per size and family."""
    groups = _most_seeds(judged) if name == "evidence" else list(_kinds(judged).values())

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
    for method in group[0].methods:
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
