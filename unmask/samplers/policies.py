"""Unmasking policies: which of the eligible positions to commit. Pure, bool [B, W] in and out."""

from __future__ import annotations

import torch
from torch import Tensor

# Up to this many columns, scores are compared pair by pair: torch.compile needs a minute for a sort, but
# a second for comparisons. Beyond, all pairs would take too much memory.
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


def best(score: Tensor, among: Tensor, n: Tensor | int) -> Tensor:
    """Return the n [B] positions of `among` with the best scores, or all if there are fewer; ties go left."""
    return among & (ranks(score, among) < (n[:, None] if isinstance(n, Tensor) else n))


def apart(score: Tensor, candidates: Tensor, conflict: Tensor) -> Tensor:
    """Return the candidates taken best first, ties left first, without two in conflict.

    `conflict` [B, W, W] bool is symmetric; its diagonal does not matter. A round takes every candidate
    without an undecided better one in conflict, and drops those in conflict with it. Each round but the last
    takes and drops at least one.
    """
    rank = ranks(score, candidates)
    prevents = conflict & (rank[:, None] < rank[:, :, None])  # [b, i, j]: j is better than i
    taken, undecided = torch.zeros_like(candidates), candidates
    leaves_early = score.device.type == "cpu" and not torch.compiler.is_compiling()
    rounds = (score.shape[-1] + 1) // 2
    for _ in range(rounds):
        free = undecided & ~(prevents & undecided[:, None]).any(-1)
        taken = taken | free
        undecided = undecided & ~free & ~(conflict & free[:, None]).any(-1)
        if leaves_early and not undecided.any():  # on a GPU the host would have to wait for the answer
            break
    return taken


def ranks(score: Tensor, among: Tensor) -> Tensor:
    """Return how many of `among` rank before each position, best score first, ties left first, [B, W]."""
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
