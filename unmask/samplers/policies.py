"""Unmasking policies: which of the eligible positions to commit. Pure, bool [B, W] in and out."""

from __future__ import annotations

import torch
from torch import Tensor


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
    if torch.compiler.is_compiling():  # it takes a minute over a sort, and a moment over comparisons
        column = torch.arange(score.shape[-1], device=score.device)
        own, other = score[:, :, None], score[:, None]
        before = (other > own) | ((other == own) & (column < column[:, None]))
        return (before & among[:, None]).sum(-1)
    order = score.argsort(dim=-1, descending=True, stable=True)
    ranked = among.gather(-1, order)
    count = ranked.cumsum(-1) - ranked.long()
    return torch.zeros_like(count).scatter(-1, order, count)
