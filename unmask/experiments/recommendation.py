"""The rule by which a grid of models recommends a sampler.

A sampler is beaten on a model if another one, tuned in the same way, is more accurate with at most as many
forwards. Of the samplers that are beaten on the fewest models, the rule recommends the one with the largest
mean AUP. If the current recommendation is beaten on as few models, it stays unless the lead in mean AUP is
significant. Only the models on which the most samplers ran count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from unmask.experiments import stats
from unmask.experiments.report import Table, corrected

if TYPE_CHECKING:
    from unmask.experiments.judged import Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the rule says: its order of the samplers, and the one that it recommends."""

    sampler: str
    ranked: Sequence[str]
    areas: Mapping[str, float]  # mean AUP
    table: Table
    words: str


def recommend(judged: Sequence[Judged], present: str) -> Advice:
    """Apply the rule. `present` is the current recommendation."""
    most = max((set(one.tuned) for one in judged), key=len)
    judged = [one for one in judged if set(one.tuned) == most]
    beaten = _beaten(judged)
    areas = {sampler: fmean(one.areas[sampler][0] for one in judged) for sampler in beaten}
    ranked = sorted(beaten, key=lambda sampler: (len(beaten[sampler]), -areas[sampler]))
    rows = [
        (
            sampler,
            f"{len(beaten[sampler])} of {len(judged)}",
            f"{areas[sampler]:.2f}",
            f"{fmean(stats.accuracy(one.tuned[sampler]).value for one in judged):.1f}",
            f"{fmean(stats.forwards(one.tuned[sampler]).value for one in judged):.1f}",
            ", ".join(beaten[sampler]),
        )
        for sampler in ranked
    ]
    header = ("sampler", "beaten on", "mean AUP", "mean accuracy, %", "mean forwards", "models")
    first = ranked[0]
    numbers = f"beaten on {rows[0][1]} models, mean AUP {rows[0][2]}"
    if len(ranked) > 1:
        numbers += f"; next {ranked[1]}, beaten on {rows[1][1]}, mean AUP {rows[1][2]}"
    words = f"First by the rule is {first}: {numbers}."
    stays = False
    if first != present and len(beaten.get(present, judged)) == len(beaten[first]):
        lead = stats.aup_difference(_mean_area(judged, present), _mean_area(judged, first))
        stays = lead.low <= 0
        words += f" Its lead over {present} in mean AUP is {lead.shown(2, sign=True)}."
        words += " That lead is within noise, so the current recommendation stays." if stays else ""
    chosen = present if stays else first
    words += f" The rule recommends {chosen}."
    table = Table("evidence-rule", "The samplers in the order of the rule", header, tuple(rows))
    return Advice(sampler=chosen, ranked=ranked, areas=areas, table=table, words=words)


def _mean_area(judged: Sequence[Judged], sampler: str) -> stats.Area:
    """Return the mean AUP over models, and that of every resample. All models share the resamples."""
    areas = [one.areas[sampler] for one in judged]
    return fmean(area for area, _ in areas), torch.stack([drawn for _, drawn in areas]).mean(0)


def _beaten(judged: Sequence[Judged]) -> dict[str, list[str]]:
    """Return the models on which each sampler is beaten, corrected for the number of comparisons."""
    pairs = [
        (one, sampler, rival)
        for one in judged
        for sampler, rival in permutations(one.tuned, 2)
        if _mean_forwards(one, rival) <= _mean_forwards(one, sampler)
    ]
    tests = corrected([("", one.gap(sampler, rival)) for one, sampler, rival in pairs])
    beaten: dict[str, list[str]] = {sampler: [] for sampler in judged[0].tuned}
    for (one, sampler, _), test in zip(pairs, tests, strict=True):
        if test.verdict == "holds" and one.name not in beaten[sampler]:
            beaten[sampler].append(one.name)
    return beaten


def _mean_forwards(one: Judged, sampler: str) -> float:
    return stats.macro({task: outcome.forwards for task, outcome in one.tuned[sampler].items()})
