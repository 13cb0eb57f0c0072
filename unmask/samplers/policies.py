"""Unmasking policies: which of the eligible positions to commit. Pure, bool [B, W] in and out."""

from __future__ import annotations

import torch
from torch import Tensor

# Up to this many columns, scores are compared pair by pair: torch's compiler takes a minute over a sort and a
# moment over comparisons. Beyond, the memory for all pairs would be too much.
MOST_COMPARED = 1024


def frontier(active: Tensor) -> Tensor:
    """The leftmost active position of every row."""
    return active & (active.cumsum(-1) == 1)


def within(active: Tensor, lookahead: int) -> Tensor:
    """Positions at most `lookahead` columns right of the frontier, the frontier included."""
    column = torch.arange(active.shape[-1], device=active.device)
    first = active.int().argmax(-1, keepdim=True)  # the first maximum is the frontier
    return active & (column <= first + lookahead)


def frontier_first(eligible: Tensor, active: Tensor, lookahead: int) -> Tensor:
    """The frontier if it is eligible, else the first eligible position within the look-ahead."""
    return frontier(eligible & within(active, lookahead))


def frontier_run(eligible: Tensor, active: Tensor) -> Tensor:
    """Eligible positions from the frontier up to the first active position that is not eligible."""
    return eligible & ((active & ~eligible).cumsum(-1) == 0)


def best(score: Tensor, among: Tensor, n: Tensor | int) -> Tensor:
    """The n [B] best-scored positions of `among`; ties go to the left; all of them where there are fewer."""
    return among & (ranks(score, among) < (n[:, None] if isinstance(n, Tensor) else n))


def ranks(score: Tensor, among: Tensor) -> Tensor:
    """How many of `among` come before each position, the best score first and ties from the left, [B, W]."""
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
