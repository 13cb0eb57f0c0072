"""The forward process: tokens are replaced by masks. Knows no model and no loss (LESS, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import FieldError, probability, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """How training rows are corrupted: by mask rates in general, some rows in the way they are decoded."""

    min_rate: float = 0.02  # the lowest mask rate, which also bounds the weight 1 / rate
    clean_prefix_share: float = 0.25  # rows that keep their answer up to a random cut and nothing behind it
    full_mask_share: float = 0.02  # rows without any token of their answer, as decoding starts
    # rows, of any kind, that keep the end tokens behind a random cut of their tail. Committing the surest
    # position first visits such rows: the tail fills from the right. Unseen, it runs into the answer
    clean_tail_share: float = 0.0

    def __post_init__(self) -> None:
        within("min_rate", self.min_rate, 1e-4, 1)
        probability("clean_prefix_share", self.clean_prefix_share)
        probability("full_mask_share", self.full_mask_share)
        probability("clean_tail_share", self.clean_tail_share)
        if self.clean_prefix_share + self.full_mask_share > 1:
            problem = f"must be at most 1 together with clean_prefix_share = {self.clean_prefix_share}"
            raise FieldError("full_mask_share", self.full_mask_share, problem)


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A batch after the forward process."""

    tokens: Tensor  # [B, N] with masks
    masked: Tensor  # [B, N] bool, what the model has to predict
    rate: Tensor  # [B] float32, share of the answer region that was meant to be masked


def survival(betas: Tensor) -> Tensor:
    """Probability that a token is still there after each step of the chain, [T] (alpha bar)."""
    return (1 - betas).cumprod(-1)


def step(tokens: Tensor, beta: Tensor | float, *, mask_id: int, generator: torch.Generator) -> Tensor:
    """One draw of q(x_t | x_{t-1}), [..., N]; a mask stays a mask (LESS Eq. 4)."""
    return torch.where(_hits(tokens, beta, generator), mask_id, tokens)


def marginal(tokens: Tensor, alive: Tensor | float, *, mask_id: int, generator: torch.Generator) -> Tensor:
    """One draw of q(x_t | x_0) where a token survives with probability `alive`, [..., N] (LESS Eq. 5)."""
    return step(tokens, 1 - alive, mask_id=mask_id, generator=generator)


def stratified_rates(rows: int, *, min_rate: float, generator: torch.Generator) -> Tensor:
    """Mask rates uniform in [min_rate, 1], one from each of `rows` equal parts, in random order, [B]."""
    device = generator.device
    inside = torch.rand(rows, generator=generator, device=device)
    part = torch.randperm(rows, generator=generator, device=device)
    return min_rate + (1 - min_rate) * (part + inside) / rows


def corrupt(
    tokens: Tensor,
    *,
    prompts: Tensor,
    answers: Tensor,
    masking: Masking,
    mask_id: int,
    generator: torch.Generator,
) -> Corrupted:
    """Mask the answer regions of rows [B, N] with prompts and answers of the given lengths [B].

    The region is all behind the prompt: the answer and its tail of end tokens.
    """
    rows, columns = tokens.shape
    rate = stratified_rates(rows, min_rate=masking.min_rate, generator=generator)
    kind = torch.rand(rows, generator=generator, device=tokens.device)
    prefix = kind < masking.clean_prefix_share
    full = ~prefix & (kind < masking.clean_prefix_share + masking.full_mask_share)
    rate = rate.masked_fill(prefix | full, 1.0)
    # at least the last token of the answer is left to predict
    kept = (torch.rand(rows, generator=generator, device=tokens.device) * answers).long()
    first = prompts + torch.where(prefix, kept, 0)
    last = _cuts(prompts + answers, columns, share=masking.clean_tail_share, generator=generator)
    place = torch.arange(columns, device=tokens.device)
    open_ = (place >= first[:, None]) & (place < last[:, None])
    masked = open_ & _hits(tokens, rate[:, None], generator)
    return Corrupted(torch.where(masked, mask_id, tokens), masked, rate)


def _cuts(ends: Tensor, columns: int, *, share: float, generator: torch.Generator) -> Tensor:
    """The column from which each row [B] is kept: for a share of them somewhere in the tail, else none."""
    chosen, inside = torch.rand(2, len(ends), generator=generator, device=ends.device)
    within_tail = ends + (inside * (columns - ends + 1)).long()
    return torch.where(chosen < share, within_tail, columns)


def _hits(tokens: Tensor, rate: Tensor | float, generator: torch.Generator) -> Tensor:
    return torch.rand(tokens.shape, generator=generator, device=tokens.device) < rate
