"""The main table: Base, Prophet, KLASS, three readings of LESS and plain thresholds on every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unmask.experiments import drawing, stats
from unmask.experiments.experiment import Experiment
from unmask.experiments.grid import Cells, declare, numbers, short, table
from unmask.experiments.lab import Lab
from unmask.experiments.methods import THRESHOLDS, more_methods
from unmask.experiments.report import Finding, Picture, Report, Table, above, below, flat
from unmask.experiments.side_by_side import side_by_side
from unmask.samplers import SAMPLERS
from unmask.types import Sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIRST_MASK = "First mask"  # not on the small tasks, where `frontier` compares it
STOPPED = "Base that stops at the end"
ABOUT = (
    "Accuracy and reverse steps of each method; the mean is the category-macro mean over math, code and "
    "knowledge. Besides the paper's four methods, the table has Algorithm 1 to the letter (`less-paper`), "
    "the released code (`less-released`) and plain confidence thresholds, which LESS has to beat at equal "
    "cost. Base is counted with its whole budget, as in the paper. Tokens after the end of a text cannot "
    "change the text, so the same records also give a row of Base that stops there, like all other methods. "
    "Base and Prophet are `base` and `prophet` on LLaDA, `base-entropy` and `prophet-dream` on Dream; both "
    "Prophets are the full-sequence form. KLASS has the thresholds that its authors tuned per task for "
    "LLaDA-8B and Dream-7B (`klass-llada-gsm8k` and so on), and `klass` (0.9 / 0.01) on the knowledge tasks. "
    "These may not be the best ones for other models, so another row has 0.9 / 0.01 on every task."
)


def _methods(family: str, task: str) -> Mapping[str, Sampler]:
    """Return the methods of the table. Add the recommended sampler on real benchmarks."""
    more = {} if task.startswith("mini-") else {FIRST_MASK: SAMPLERS["first-mask"]}
    return {**more_methods(family, task), **more}


def _build(lab: Lab, cells: Sequence[Cells]) -> Report:
    all_cells = [_with_full_base(one) for one in cells]
    return Report(
        tables=flat([_tables(one) for one in all_cells]),
        pictures=(_picture(all_cells),),
        findings=flat([_findings(one) for one in all_cells]),
    )


def _with_full_base(cells: Cells) -> Cells:
    """Put a row of Base with its whole budget before the row of Base as it ran."""
    stopped = cells.rows["Base"]
    full = {task: outcome.spending_all() for task, outcome in stopped.items()}
    others = {label: outcomes for label, outcomes in cells.rows.items() if label != "Base"}
    return Cells(cells.model, {"Base": full, STOPPED: stopped, **others})


def _tables(cells: Cells) -> tuple[Table, ...]:
    title = f"{short(cells.model)}: accuracy / steps (points to Base)"
    paper = {label: label for label in ("Base", "Prophet", "KLASS", "LESS")}
    return (
        table(cells, "headline", title, against="Base"),
        _savings(cells),
        *side_by_side(cells, "headline", rows=paper),
    )


def _savings(cells: Cells) -> Table:
    """Return the steps saved against Base with its whole budget, and the forwards against Base as it ran."""
    rows = []
    for label, outcomes in cells.rows.items():
        steps, forwards = stats.steps(outcomes), stats.forwards(outcomes)
        fewer_steps = stats.saved(cells.rows["Base"], outcomes, "steps")
        fewer_forwards = stats.saved(cells.rows[STOPPED], outcomes, "forwards")
        rows.append((label, steps.shown(), forwards.shown(), fewer_steps.shown(), fewer_forwards.shown()))
    header = (
        "method",
        "steps",
        "forwards",
        "fewer steps than Base, %",
        f"fewer forwards than {STOPPED}, %",
    )
    name, title = f"headline-savings-{short(cells.model)}", f"{short(cells.model)}: steps and forwards saved"
    return Table(name, title, header, tuple(rows), tuple(numbers(cells)))


def _picture(all_cells: Sequence[Cells]) -> Picture:
    def draw() -> Figure:
        figure, axes = drawing.panels(len(all_cells), height=4.2)
        for panel, cells in zip(axes, all_cells, strict=True):
            drawing.points(panel, _points(cells))
            drawing.title(panel, short(cells.model), _message(cells))
        for panel, cells in zip(axes, all_cells, strict=True):
            places = {label: (cost.value, quality.value) for label, (cost, quality) in _points(cells).items()}
            drawing.name_points(figure, panel, places)
        return figure

    caption = (
        "Macro accuracy over forward passes, with 95 % intervals; up and left is better. A hollow marker is "
        "another form of a method."
    )
    return Picture("headline", caption, draw)


def _points(cells: Cells) -> dict[str, tuple[stats.Estimate, stats.Estimate]]:
    """Return the forwards and the accuracy of every method."""
    return {label: (stats.forwards(one), stats.accuracy(one)) for label, one in cells.rows.items()}


def _message(cells: Cells) -> str:
    found = _points(cells)
    less, base = (
        f"{label} {quality.value:.1f} % at {cost.value:.3g}"
        for label, (cost, quality) in ((label, found[label]) for label in ("LESS", "Base"))
    )
    return f"{less} forwards, {base}"


def _findings(cells: Cells) -> tuple[Finding, ...]:
    """Test the paper's claims about this table, and LESS against plain thresholds."""
    less, model = cells.rows["LESS"], short(cells.model)
    rivals = ("KLASS", "KLASS 0.9 / 0.01", *THRESHOLDS)
    saved = stats.saved(cells.rows["Base"], less, "steps")
    first = cells.rows.get(FIRST_MASK)
    recommended = (
        ()
        if first is None
        else (
            above(f"{model}: First mask is more accurate than LESS", stats.difference(less, first)),
            below(
                f"{model}: First mask needs fewer forwards than LESS",
                stats.share(less, first, "forwards"),
                100,
                unit="% of its",
            ),
        )
    )
    return (
        *(
            above(f"{model}: LESS is more accurate than {name}", stats.difference(cells.rows[name], less))
            for name in ("Base", "Prophet", *rivals)
        ),
        above(f"{model}: LESS takes at least 50 % fewer steps than Base's budget", saved, 50, unit="%"),
        *(
            below(
                f"{model}: LESS needs fewer forwards than {name}",
                stats.share(cells.rows[name], less, "forwards"),
                100,
                unit="% of its",
            )
            for name in (STOPPED, *rivals)
        ),
        *recommended,
    )


EXPERIMENT = Experiment(
    name="headline",
    title="The main table",
    about=ABOUT,
    runs=lambda lab: declare(lab, _methods),
    build=_build,
)
