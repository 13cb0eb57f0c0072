"""Compare two runs on the same samples: the difference and its confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.evals.records import Record
from unmask.evals.significance import Interval, bootstrap, mcnemar, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Run B against run A, on the samples that both have."""

    samples: int
    only_first: int  # samples missing in B
    only_second: int
    accuracies: tuple[float, float]
    intervals: tuple[Interval, Interval]  # Wilson, 95 %
    difference: float  # B - A
    difference_interval: Interval  # bootstrap over pairs, 95 %
    p_value: float  # McNemar, exact
    lost: tuple[str, ...]  # right in A, wrong in B
    gained: tuple[str, ...]  # wrong in A, right in B
    step_ratio: float  # steps of A over steps of B; above 1 if B takes fewer
    forward_ratio: float
    same_texts: int


def compare(first: Sequence[Record], second: Sequence[Record], *, seed: int = 0) -> Comparison:
    """Pair two runs by sample id; `seed` seeds the bootstrap."""
    left, right = _by_id(first, "the first run"), _by_id(second, "the second run")
    ids = [name for name in left if name in right]
    if not ids:
        raise ValueError("the runs share no sample; are they of the same task?")
    pairs = [(left[name], right[name]) for name in ids]
    lost = tuple(a.id for a, b in pairs if a.correct and not b.correct)
    gained = tuple(a.id for a, b in pairs if b.correct and not a.correct)
    correct = sum(a.correct for a, _ in pairs), sum(b.correct for _, b in pairs)
    return Comparison(
        samples=len(ids),
        only_first=len(left) - len(ids),
        only_second=len(right) - len(ids),
        accuracies=(correct[0] / len(ids), correct[1] / len(ids)),
        intervals=(wilson(correct[0], len(ids)), wilson(correct[1], len(ids))),
        difference=(correct[1] - correct[0]) / len(ids),
        difference_interval=bootstrap(len(lost), len(gained), len(ids), seed=seed),
        p_value=mcnemar(len(lost), len(gained)),
        lost=lost,
        gained=gained,
        step_ratio=sum(a.steps for a, _ in pairs) / max(1, sum(b.steps for _, b in pairs)),
        forward_ratio=sum(a.forwards for a, _ in pairs) / max(1, sum(b.forwards for _, b in pairs)),
        same_texts=sum(a.text == b.text for a, b in pairs),
    )


def _by_id(records: Sequence[Record], whose: str) -> dict[str, Record]:
    by_id = {record.id: record for record in records}
    if len(by_id) < len(records):
        twice = next(r.id for place, r in enumerate(records) if r.id in {o.id for o in records[:place]})
        raise ValueError(f"{whose} has the sample {twice} twice")
    return by_id
