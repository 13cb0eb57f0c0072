"""Block caches under four samplers: time saved, accuracy lost, effect on the signals of LESS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unmask.evals.records import settings_of
from unmask.evals.significance import wilson
from unmask.experiments import drawing, methods, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, RunKey, numbers, short
from unmask.experiments.lab import Lab
from unmask.experiments.report import Finding, Picture, Report, Table, above, below, flat
from unmask.experiments.runs import Outcome, Run
from unmask.experiments.shadow import Sight, watch
from unmask.samplers import SAMPLERS, Threshold
from unmask.types import Sampler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLOCK = 32
NONE = "no cache"
CACHES: dict[str, str | None] = {NONE: None, "prefix": "prefix", "dual": "dual"}
SAMPLES = 50  # samples per task whose signals are measured
TOLERANCE = 1.0  # points
NO_DUAL_KLASS = (
    "KLASS has no row with the dual cache: it needs divergences beyond the block, and this cache recomputes "
    "the block only."
)


def _samplers(family: str, task: str) -> dict[str, Sampler]:
    return {
        "Base": methods.base(family),
        "Threshold 0.9": Threshold(min_confidence=0.9),
        "KLASS": methods.klass(family, task),
        "LESS": SAMPLERS["less"],
    }


def allowed(sampler: Sampler, cache: str) -> bool:
    """Return whether a cache recomputes every column that the sampler reads."""
    return not (CACHES[cache] == "dual" and sampler.needs.span)


def _declare(lab: Lab) -> dict[RunKey, Run]:
    """Return a run per model, method, cache and task."""
    return {
        (model, _row(label, cache), task): lab.run(
            model, task, sampler, cache=CACHES[cache], block_length=BLOCK
        )
        for model in lab.models
        for task in lab.tasks(model)
        for label, sampler in _samplers(lab.family(model), task).items()
        for cache in CACHES
        if allowed(sampler, cache)
    }


def _row(label: str, cache: str) -> str:
    return f"{label}, {cache}"


def _build(lab: Lab, cells: Sequence[Cells]) -> Report:
    sights = {model: {cache: _sights(lab, model, cache) for cache in CACHES} for model in lab.models}
    return Report(
        tables=(*flat([_tables(one) for one in cells]), _sight_table(sights)),
        pictures=(_picture(cells),),
        findings=flat([(*_findings(one), *_sight_findings(one.model, sights[one.model])) for one in cells]),
        notes=(NO_DUAL_KLASS,),
    )


def _pairs(cells: Cells) -> list[tuple[str, str]]:
    """Return the method and the cache of every row."""
    labels = dict.fromkeys(row.rpartition(", ")[0] for row in cells.rows)
    return [(label, cache) for label in labels for cache in CACHES if _row(label, cache) in cells.rows]


def _tables(cells: Cells) -> tuple[Table, ...]:
    return _summary(cells), _by_task(cells)


def _summary(cells: Cells) -> Table:
    rows, first = [], next(iter(next(iter(cells.rows.values())).values()))
    for label, cache in _pairs(cells):
        mine, plain_run = cells.rows[_row(label, cache)], cells.rows[_row(label, NONE)]
        rows.append(
            (
                label,
                cache,
                stats.accuracy(mine).shown(),
                "" if cache == NONE else stats.difference(plain_run, mine).shown(sign=True),
                stats.steps(mine).shown(),
                stats.forwards(mine).shown(),
                f"{1000 * _seconds(mine):.3g}",
                "" if cache == NONE else f"{_seconds(plain_run) / _seconds(mine):.2f}",
            )
        )
    header = (
        "method",
        "cache",
        "mean accuracy, %",
        f"points to {NONE}",
        "steps",
        "forwards",
        "ms per sample",
        "times as fast",
    )
    title = (
        f"{short(cells.model)}, blocks of {BLOCK}, batches of {first.configuration['batch_size']} on "
        f"{first.configuration['model']['device']}"
    )
    return Table(f"cache-{short(cells.model)}", title, header, tuple(rows), tuple(_numbers(cells)))


def _seconds(outcomes: Mapping[str, Outcome]) -> float:
    """Return the macro mean of the seconds of decoding per sample."""
    return stats.macro({task: one.seconds for task, one in outcomes.items()})


def _numbers(cells: Cells) -> list[dict[str, Any]]:
    """Return all numbers, a line per method, cache and task."""
    return [{**line, "seconds": cells.rows[line["method"]][line["task"]].seconds} for line in numbers(cells)]


def _by_task(cells: Cells) -> Table:
    rows = [
        (_row(label, cache), *(_cell(one) for one in cells.rows[_row(label, cache)].values()))
        for label, cache in _pairs(cells)
    ]
    header = ("method, cache", *map(methods.title, cells.tasks))
    title = f"{short(cells.model)}: accuracy [95 %] / forwards"
    return Table(f"cache-tasks-{short(cells.model)}", title, header, tuple(rows))


def _cell(outcome: Outcome) -> str:
    low, high = wilson(outcome.correct, len(outcome.records))
    return f"{100 * outcome.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}] / {outcome.forwards:.1f}"


def _findings(cells: Cells) -> list[Finding]:
    """Test what each cache costs each method, and whether LESS still saves forwards with it."""
    model, results = short(cells.model), []
    for label, cache in _pairs(cells):
        if cache != NONE:
            gap = stats.difference(cells.rows[_row(label, NONE)], cells.rows[_row(label, cache)])
            what = f"{model}: the {cache} cache costs {label} at most {TOLERANCE:g} point"
            results.append(above(what, gap, -TOLERANCE))
    for cache in CACHES:
        less, base = cells.rows[_row("LESS", cache)], cells.rows[_row("Base", cache)]
        what = f"{model}: LESS needs fewer forwards than Base, {cache}"
        results.append(below(what, stats.share(base, less, "forwards"), 100, unit="% of its"))
    return results


def _sights(lab: Lab, model: str, cache: str) -> list[Sight]:
    """Return the signals on the first samples of every math and code task. Like a run, they are kept."""
    return [sight for task in lab.tasks(model, methods.HARD) for sight in _watched(lab, model, cache, task)]


def _watched(lab: Lab, model: str, cache: str, task: str) -> list[Sight]:
    base = methods.base(lab.family(model))
    config = lab.run(model, task, base, cache=CACHES[cache], block_length=BLOCK).config
    samples = lab.samples(task, SAMPLES)

    def make() -> list[dict[str, float]]:
        loaded = lab.model(model)
        return watch(loaded, samples, base, config, batch_size=lab.batch_size(loaded))

    settings = {
        "task": task,
        "samples": len(samples),
        "base": settings_of(base),
        "config": settings_of(config),
    }
    return [Sight(**sight) for sight in lab.measurement(model, "signals", settings, make)]


SIGNALS = {  # field of Sight -> column title, factor, digits
    "jsd": ("JSD between steps, 10⁻³", 1000, 2),
    "changed": ("top-1 changed, % of positions", 100, 2),
    "confidence": ("confidence, %", 100, 1),
    "ready": ("LESS would commit, % of positions", 100, 1),
}


def _sight_table(sights: Mapping[str, Mapping[str, Sequence[Sight]]]) -> Table:
    rows, data = [], []
    for model, caches in sights.items():
        for cache, samples in caches.items():
            means = {name: stats.mean([one.share(name) for one in samples]) for name in SIGNALS}
            cells = [means[name].scaled(by).shown(digits) for name, (_, by, digits) in SIGNALS.items()]
            rows.append((short(model), cache, *cells, str(len(samples))))
            data.append(
                {
                    "model": short(model),
                    "cache": cache,
                    "samples": len(samples),
                    **{name: estimate.value for name, estimate in means.items()},
                }
            )
    header = ("model", "cache", *(title for title, _, _ in SIGNALS.values()), "samples")
    title = "What LESS sees while Base decodes: means over the masked positions of a block and its steps"
    return Table("cache-signals", title, header, tuple(rows), tuple(data))


def _sight_findings(model: str, caches: Mapping[str, Sequence[Sight]]) -> list[Finding]:
    """Test whether stale keys make successive steps more alike, on the same samples and schedule."""
    results = []
    for cache in CACHES:
        if cache != NONE:
            what = f"{short(model)}: with the {cache} cache "
            jsd = _change(caches[NONE], caches[cache], "jsd").scaled(1000)
            flips = _change(caches[NONE], caches[cache], "changed").scaled(100)
            results += [
                below(f"{what}the predictions of two steps have a smaller JSD", jsd, unit="x 10⁻³"),
                below(f"{what}the top-1 token changes more rarely", flips, unit="% of positions"),
            ]
    return results


def _change(before: Sequence[Sight], after: Sequence[Sight], name: str) -> stats.Estimate:
    """Return the change of a signal's mean, paired by sample."""
    return stats.mean([new.share(name) - old.share(name) for old, new in zip(before, after, strict=True)])


def _picture(all_cells: Sequence[Cells]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(all_cells), height=3.4)
        for panel, cells in zip(axes, all_cells, strict=True):
            _draw_methods(panel, cells)
            drawing.log_axis(panel)
            panel.set_xlabel("milliseconds of decoding per sample (log)")
            panel.set_ylabel("mean accuracy, %")
            drawing.title(panel, short(cells.model), _message(cells))
        for panel, cells in zip(axes, all_cells, strict=True):
            names = {
                (label if cache == NONE else f"{label}, {cache}"): _place(cells, label, cache)
                for label, cache in _pairs(cells)
            }
            drawing.name_points(figure, panel, names)
        return figure

    caption = "Accuracy over time, with 95 % intervals. Filled: no cache; hollow: with a cache."
    return Picture("cache", caption, draw)


def _message(cells: Cells) -> str:
    plain, dual = (cells.rows[_row("LESS", cache)] for cache in (NONE, "dual"))
    gap = stats.difference(plain, dual).shown(sign=True)
    return f"LESS with the dual cache: {_seconds(plain) / _seconds(dual):.2f} times as fast,\n{gap} points"


def _place(cells: Cells, label: str, cache: str) -> tuple[float, float]:
    """Return the milliseconds and accuracy of a method with a cache."""
    mine = cells.rows[_row(label, cache)]
    return 1000 * _seconds(mine), stats.accuracy(mine).value


def _draw_methods(axes: Axes, cells: Cells) -> None:
    """Draw a point for each method and cache, and join the points of a method by a line."""
    for label in dict.fromkeys(label for label, _ in _pairs(cells)):
        caches = [cache for of, cache in _pairs(cells) if of == label]
        places = [_place(cells, label, cache) for cache in caches]
        axes.plot(*zip(*places, strict=True), color=drawing.colour(label), linewidth=1, zorder=2)
        for cache, (x, y) in zip(caches, places, strict=True):
            interval = drawing.reach(stats.accuracy(cells.rows[_row(label, cache)]))
            look = drawing.look(label, filled=cache == NONE)
            axes.errorbar(x, y, yerr=interval, capsize=2, linewidth=0.8, **look)


EXPERIMENT = Experiment(
    name="cache",
    title="Block caches",
    about=(
        f"Blocks of {BLOCK} columns. The prefix cache freezes the columns before the block, the dual cache "
        "those before and after it; both are refreshed when a block begins. A forward with a cache "
        "computes fewer columns, so compare seconds, not forwards. Seconds are those of decoding in batches, "
        "without scoring, one run each. The last table shows the signals of LESS on the "
        f"first {SAMPLES} samples of each math and code task while Base decodes, so that all three caches "
        "follow the same schedule."
    ),
    runs=_declare,
    build=_build,
)
