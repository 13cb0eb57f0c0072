"""Each rule in its plainest form: full softmax, loops over positions, one scalar read at a time.

The samplers are timed and tested against these rules. A rule reads one row over the full sequence, uses the
default settings of its sampler, and returns the positions to commit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unmask.types import Observation


def base(obs: Observation) -> set[int]:
    """Commit the quota of most confident positions."""
    return set(_by_confidence(obs)[: int(obs.quota[0])])


def base_entropy(obs: Observation) -> set[int]:
    """Commit the quota of positions with the lowest entropy."""
    return set(_by_entropy(obs)[0][: int(obs.quota[0])])


def threshold(obs: Observation) -> set[int]:
    """Commit every position with confidence >= 0.9, and at least the best one."""
    confidence, ranked = _confidence(obs), _by_confidence(obs)
    return {i for i in ranked if confidence[i].item() >= 0.9} | set(ranked[:1])


def factor(obs: Observation) -> set[int]:
    """Commit rank n while confidence >= 1 - 1 / (n + 1), and at least the first."""
    confidence, kept = _confidence(obs), set()
    for rank, i in enumerate(_by_confidence(obs), start=1):
        if rank > 1 and confidence[i].item() < 1 - 1 / (rank + 1):
            break
        kept.add(i)
    return kept


def entropy_bound(obs: Observation) -> set[int]:
    """Commit positions by entropy while the earlier ones add up to at most 0.1."""
    ranked, entropy = _by_entropy(obs)
    kept, total = set(), 0.0
    for i in ranked:
        if total > 0.1:
            break
        kept.add(i)
        total += entropy[i].item()
    return kept


def prophet(obs: Observation) -> set[int]:
    """Commit everything if the mean logit gap is wide and no argmax changed, else the quota."""
    top = obs.now.full_logits[0].topk(2)
    gaps = [(top.values[i, 0] - top.values[i, 1]).item() for i in _active(obs)]
    before = obs.past[0].full_logits[0].argmax(-1)
    changed = any(top.indices[i, 0].item() != before[i].item() for i in _active(obs))
    progress = obs.progress[0].item()
    needed = 7.5 if progress < 1 / 3 else 5.0 if progress < 2 / 3 else 2.5
    return set(_active(obs)) if sum(gaps) / len(gaps) >= needed and not changed else base(obs)


def klass(obs: Observation) -> set[int]:
    """Require confidence >= 0.9 and two divergences in a row below 0.01; else commit the most confident."""
    now, before = (prediction.full_logits[0].double().softmax(-1) for prediction in (obs.now, obs.past[0]))
    kl = (now * ((now + 1e-12).log() - (before + 1e-12).log())).sum(-1)
    confidence = now.max(-1).values
    assert obs.carry is not None
    earlier = obs.carry[0, :, 0]
    ready = {
        i
        for i in _active(obs)
        if confidence[i].item() >= 0.9 and kl[i].item() < 0.01 and earlier[i].item() < 0.01
    }
    return ready or set(_by_confidence(obs)[:1])


def less(obs: Observation) -> set[int]:
    """Joint rule: commit the run from the frontier, else the first in the look-ahead, else the frontier."""
    active, eligible = _active(obs), _eligible(obs, exact=True)
    return _run(active, eligible) or set(_ahead(active, eligible)[:1]) or {active[0]}


def less_paper(obs: Observation) -> set[int]:
    """Joint rule: commit the first eligible position within the look-ahead, else nothing."""
    return set(_ahead(_active(obs), _eligible(obs, exact=True))[:1])


def less_released(obs: Observation) -> set[int]:
    """Released rule: commit the run from the frontier, else the most confident ahead, else the frontier."""
    active, confidence = _active(obs), _confidence(obs)
    eligible = _eligible(obs, exact=False)
    ahead = sorted(_ahead(active, eligible), key=lambda i: -confidence[i].item())
    return _run(active, eligible) or set(ahead[:1]) or {active[0]}


def _eligible(obs: Observation, *, exact: bool) -> set[int]:
    """Return positions with confidence >= 0.75, an unchanged winner and a divergence of at most 0.04."""
    now, before = obs.now.full_logits[0].softmax(-1), obs.past[0].full_logits[0].softmax(-1)
    now_top, before_top = now.topk(8).indices, before.topk(8).indices
    eligible = set()
    for i in _active(obs):
        ours, theirs = now_top[i].tolist(), before_top[i].tolist()
        if now[i].max().item() >= 0.75 and ours[0] == theirs[0]:
            masses = [
                (
                    now[i, token].item() if exact or token in ours else 0.0,
                    before[i, token].item() if exact or token in theirs else 0.0,
                )
                for token in {*ours, *theirs}
            ]
            if _jsd(masses) <= 0.04:
                eligible.add(i)
    return eligible


def _jsd(masses: list[tuple[float, float]]) -> float:
    """Return the Jensen-Shannon divergence on the given bins and one bin for the rest."""
    masses = [*masses, (max(0.0, 1 - sum(a for a, _ in masses)), max(0.0, 1 - sum(b for _, b in masses)))]
    return sum(0.5 * x * math.log(2 * x / (a + b)) for a, b in masses for x in (a, b) if x > 0)


def _run(active: list[int], eligible: set[int]) -> set[int]:
    run = set()
    for i in active:
        if i not in eligible:
            break
        run.add(i)
    return run


def _ahead(active: list[int], eligible: set[int]) -> list[int]:
    return [i for i in active if i in eligible and i <= active[0] + 16]


def _active(obs: Observation) -> list[int]:
    return [int(i) for i in torch.where(obs.active[0])[0]]


def _confidence(obs: Observation) -> Tensor:
    return obs.now.full_logits[0].double().softmax(-1).max(-1).values


def _by_confidence(obs: Observation) -> list[int]:
    confidence = _confidence(obs)
    return sorted(_active(obs), key=lambda i: -confidence[i].item())


def _by_entropy(obs: Observation) -> tuple[list[int], Tensor]:
    mass = obs.now.full_logits[0].softmax(-1)
    entropy = -(mass * (mass + 1e-10).log()).sum(-1)
    return sorted(_active(obs), key=lambda i: entropy[i].item()), entropy


PLAIN = {
    "base": base,
    "base-entropy": base_entropy,
    "threshold": threshold,
    "factor": factor,
    "entropy-bound": entropy_bound,
    "prophet": prophet,
    "klass": klass,
    "less": less,
    "less-paper": less_paper,
    "less-released": less_released,
}
