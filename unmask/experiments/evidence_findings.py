"""The findings of `evidence`, corrected for the number of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from statistics import fmean

from unmask.experiments import methods, stats
from unmask.experiments.judged import (
    BASE,
    END_RULE,
    GATED,
    RECOMMENDED,
    UNGATED,
    Judged,
    by_family,
    by_kind,
    by_size,
    pooled_gain,
)
from unmask.experiments.ranking import agreement, spearman
from unmask.experiments.report import ALPHA, Finding, Verdict, corrected

# the first two write in another order than the recommended sampler, the last in nearly the same
RIVALS_BY_TASK = (BASE, END_RULE, "First mask, accurate")
KEPT = 1.0  # points; a smaller loss does not count
SAME_RANKING = 0.6  # Kendall's tau
FEWEST_RANKED = 5  # samplers; a ranking of fewer says little


def on_the_frontier(judged: Sequence[Judged]) -> list[Finding]:
    """Test for every model that no sampler with at most as many forwards beats the recommended one.

    Skip a rival that surely needs more forwards. If a rival did not run, the claim cannot hold.
    """
    judged = [one for one in judged if one.ran(RECOMMENDED)]
    cheap = [
        (one, rival)
        for one in judged
        for rival in one.tuned
        if rival != RECOMMENDED
        and stats.share(one.tuned[RECOMMENDED], one.tuned[rival], "forwards").low <= 100
    ]
    tests = corrected([(rival, one.gap(rival, RECOMMENDED)) for one, rival in cheap])
    found = []
    for one in judged:
        mine = [test for (other, _), test in zip(cheap, tests, strict=True) if other is one]
        verdicts = {test.verdict for test in mine}
        missing = len(one.study) - len(one.tuned)
        verdict: Verdict = "undecided" if missing or "undecided" in verdicts else "holds"
        if "does not hold" in verdicts:
            verdict = "does not hold"
        against = [f"to {test.statement} {test.numbers}" for test in mine] or [
            "all rivals need more forwards"
        ]
        if missing:
            against.append(f"{len(one.tuned) - 1} of {len(one.study) - 1} rivals ran")
        statement = f"{one.name}: no sampler of at most its forwards is more accurate than {RECOMMENDED}"
        found.append(Finding(statement, verdict, "; ".join(against)))
    return found


def task_gaps(judged: Sequence[Judged]) -> dict[tuple[str, str, str], tuple[int, stats.Estimate]]:
    """Return the number of models and the recommended sampler's gain, by family, task and rival.

    An item counts once, with its mean gain over the models of a family.
    """
    gaps = {}
    for family, group in by_family(judged).items():
        for task, rival in product(group[0].cells.tasks, RIVALS_BY_TASK):
            able = [one for one in group if one.ran(rival, RECOMMENDED)]
            if able:
                runs = [
                    stats.gains(one.tuned[rival][task].records, one.tuned[RECOMMENDED][task].records)
                    for one in able
                ]
                gaps[family, task, rival] = len(able), stats.mean_gain(runs).scaled(100)
    return gaps


def loses(judged: Sequence[Judged]) -> list[Finding]:
    """Return a finding that counts the verdicts of all comparisons, and one for each that a rival wins."""
    gaps = task_gaps(judged)
    claims = [
        (f"{family}: {rival} is more accurate than {RECOMMENDED} on {methods.title(task)}", gap.scaled(-1))
        for (family, task, rival), (_, gap) in gaps.items()
    ]
    tests = corrected(claims)
    lost = [test for test in tests if test.verdict == "holds"]
    counts = {
        word: sum(test.verdict == word for test in tests) for word in ("holds", "does not hold", "undecided")
    }
    verdict: Verdict = "holds" if lost else "undecided" if counts["undecided"] else "does not hold"
    told = ", ".join(f"{word}: {count}" for word, count in counts.items())
    return [Finding(f"a rival beats {RECOMMENDED} on some task", verdict, told), *lost]


def gate(judged: Sequence[Judged]) -> list[Finding]:
    """Test whether the gate of LESS gains accuracy at the same bar, and whether worse models gain more."""
    able = [one for one in judged if one.ran(GATED, UNGATED)]
    if not able:
        return []
    words = f"the gate of {GATED} gains accuracy at the same bar"
    claims = [(f"{one.name}: {words}", _gate_gain([one])) for one in able]
    claims += [
        (f"all {size} models: {words}", _gate_gain(group))
        for size, group in by_size(able).items()
        if len(group) > 1
    ]
    found = corrected(claims)
    kinds = [[one for one in group if one.ran(BASE)] for group in by_kind(able).values()]
    kinds = [group for group in kinds if group]
    if len(kinds) > 3:  # kinds rather than models, because seeds of a kind are much alike
        quality = [fmean(stats.accuracy(one.tuned[BASE]).value for one in group) for group in kinds]
        trend, p = spearman(quality, [_gate_gain(group).value for group in kinds])
        verdict: Verdict = "undecided" if p >= ALPHA else "holds" if trend < 0 else "does not hold"
        numbers = f"Spearman {trend:+.2f} over {len(kinds)} kinds of models, permutation p = {p:.2g}"
        found.append(Finding("the gate does more on worse models", verdict, numbers))
    return found


def _gate_gain(group: Sequence[Judged]) -> stats.Estimate:
    """Return what the gate adds to the accuracy of LESS at the same bar, in points."""
    return pooled_gain([(one.ungated, one.tuned[GATED]) for one in group])


def without_labels(judged: Sequence[Judged]) -> list[Finding]:
    able = [one for one in judged if one.bars and one.ran(RECOMMENDED)]
    words = f"the bar without labels is at most {KEPT:g} point below the one with labels"
    claims = [
        (f"{one.name}: {words}", stats.difference(one.tuned[RECOMMENDED], one.unlabelled)) for one in able
    ]
    if len(able) > 1:
        pairs = [(one.tuned[RECOMMENDED], one.unlabelled) for one in able]
        claims.append((f"all {len(able)} models: {words}", pooled_gain(pairs)))
    return corrected(claims, -KEPT)


def rankings(judged: Sequence[Judged]) -> list[Finding]:
    """Test whether samplers rank alike by AUP across seeds and sizes. Skip models with equal AUPs."""
    claims = []
    for family, group in by_family(judged).items():
        sizes = by_size([one for one in group if len({area for area, _ in one.areas.values()}) > 1])
        for small, large in [*((size, size) for size in sizes), *combinations(sizes, 2)]:
            both = combinations(sizes[small], 2) if small == large else product(sizes[small], sizes[large])
            pairs = [_shared_areas(first, second) for first, second in both]
            where = f"other seeds of {small}" if small == large else f"{small} and {large}"
            count = min((len(first) for first, _ in pairs), default=0)
            if count >= FEWEST_RANKED:
                claims.append((f"{family}: {count} samplers rank alike in {where}", agreement(pairs)))
    return corrected(claims, SAME_RANKING, unit="Kendall's tau")


def _shared_areas(first: Judged, second: Judged) -> tuple[list[stats.Area], list[stats.Area]]:
    """Return the AUPs of the samplers that ran on both models."""
    shared = [name for name in first.areas if name in second.areas]
    return [first.areas[name] for name in shared], [second.areas[name] for name in shared]
