"""Unmasking policies: which of the eligible positions to commit. Pure functions of tensors [B, W]."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unmask.errors import FieldError, whole

# what to commit where nothing passes: the surest position, the first mask, or the surest of the first n masks
Fallback = Literal["surest", "first"] | int

# Up to this many columns, scores are compared pair by pair, because torch.compile needs a minute for a sort
# but only a second for comparisons. With more columns, all pairs would need too much memory.
MOST_COMPARED = 1024


def frontier(active: Tensor) -> Tensor:
    """Return the leftmost active position of every row."""
    return active & (active.cumsum(-1) == 1)


def within(active: Tensor, lookahead: int) -> Tensor:
    """Return the frontier and the active positions at most `lookahead` columns to its right."""
    column = torch.arange(active.shape[-1], device=active.device)
    first = active.int().argmax(-1, keepdim=True)  # the first maximum is the frontier
    return active & (column <= first + lookahead)


def frontier_first(eligible: Tensor, active: Tensor, lookahead: int) -> Tensor:
    """Return the frontier if it is eligible, else the first eligible position within the look-ahead."""
    return frontier(eligible & within(active, lookahead))


def frontier_run(eligible: Tensor, active: Tensor) -> Tensor:
    """Return the eligible positions from the frontier up to the first active one that is not eligible."""
    return eligible & ((active & ~eligible).cumsum(-1) == 0)


def ends_last(commit: Tensor, active: Tensor, is_end: Tensor) -> Tensor:
    """Return the commits without the end tokens that would still have an active position to their left."""
    # one pass is enough: a position that rules out an end token rules out every one to its right
    return commit & ~(is_end & ((active & ~commit).cumsum(-1) > 0))


def best_of_runs(score: Tensor, active: Tensor) -> Tensor:
    """Return the best of every run of adjacent active positions; ties are all best."""
    run = (~active).cumsum(-1)  # the same number along a run, and at the gap before it
    score = score.masked_fill(~active, -torch.inf)
    lowest = torch.full_like(score[:, :1], -torch.inf).expand(-1, score.shape[-1] + 1)
    best_score = lowest.scatter_reduce(-1, run, score, "amax").gather(-1, run)
    return active & (score == best_score)


def best(score: Tensor, among: Tensor, n: Tensor | int) -> Tensor:
    """Return the n [B] positions of `among` with the best scores, or all if there are fewer; ties go left."""
    return among & (ranks(score, among) < (n[:, None] if isinstance(n, Tensor) else n))


def fallback(score: Tensor, active: Tensor, choice: Fallback) -> Tensor:
    """Return the one position of every row that is committed where nothing passes."""
    if choice == "first":
        return frontier(active)
    return best(score, active if choice == "surest" else active & (active.cumsum(-1) <= choice), 1)


def check_fallback(choice: object) -> None:
    """Raise unless `fallback` accepts this choice."""
    if choice in ("surest", "first"):
        return
    if isinstance(choice, bool) or not isinstance(choice, int):
        problem = "must be 'surest', 'first' or a whole number >= 1"
        raise FieldError("fallback", choice, problem, "a number n takes the surest of the first n masks")
    whole("fallback", choice, 1)


def apart(score: Tensor, candidates: Tensor, conflict: Tensor) -> Tensor:
    """Return candidates of which no two are in conflict, taken best first; ties go left.

    `conflict` [B, W, W] bool is symmetric; its diagonal does not matter.
    """
    rank = ranks(score, candidates)
    taken: Tensor = _take_apart(candidates, conflict, conflict & (rank[:, None] < rank[:, :, None]))
    return taken


def _take_in_rounds(candidates: Tensor, conflict: Tensor, prevents: Tensor) -> Tensor:
    """In each round, take every candidate i that no undecided j prevents, and drop those in conflict with it.

    `prevents` [b, i, j] means that j goes before i. Each round but the last takes and drops at least one.
    """
    taken, undecided, width = torch.zeros_like(candidates), candidates, candidates.shape[-1]
    for _ in range((width + 1) // 2):
        free = undecided & ~(prevents & undecided[:, None]).any(-1)
        taken = taken | free
        undecided = undecided & ~free & ~(conflict & free[:, None]).any(-1)
        if not candidates.is_cuda and not undecided.any():  # on a GPU the host would have to wait for it
            break
    return taken


# one operation for torch.compile, which would need minutes for the unrolled rounds
_take_apart = torch.library.custom_op(
    "unmask::take_apart",
    _take_in_rounds,
    mutates_args=(),
    schema="(Tensor candidates, Tensor conflict, Tensor prevents) -> Tensor",
)
_take_apart.register_fake(lambda candidates, conflict, prevents: torch.empty_like(candidates))


def ranks(score: Tensor, among: Tensor) -> Tensor:
    """Return how many of `among` rank before each position, [B, W]. The best score is first; ties go left."""
    if score.shape[-1] > MOST_COMPARED:
        return _ranks_by_sorting(score, among)
    column = torch.arange(score.shape[-1], device=score.device)
    own, other = score[:, :, None], score[:, None]
    before = torch.where(column < column[:, None], other >= own, other > own)
    return (before & among[:, None]).sum(-1)


def _ranks_by_sorting(score: Tensor, among: Tensor) -> Tensor:
    order = score.argsort(dim=-1, descending=True, stable=True)
    ranked = among.gather(-1, order)
    count = ranked.cumsum(-1) - ranked.long()
    return torch.zeros_like(count).scatter(-1, order, count)
