"""The forward process: replace tokens by masks (LESS, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import FieldError, probability, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """How training rows are masked: at random rates, and some as decoding would leave them.

    Attributes:
        min_rate: Lowest mask rate, 0.0001 to 1; also bounds the weight 1 / rate.
        clean_prefix_share: Share of rows that keep only a random prefix of their answer.
        full_mask_share: Share of rows with the whole answer masked, as at the start of decoding.
        clean_tail_share: Share of rows, of any kind, that keep the end tokens after a random cut in their
            tail. Decoding the most confident position first produces such rows, because the tail fills from
            the right. A model that never saw them in training lets the tail run into the answer.
        gap_share: Share of rows, of any kind, that keep all but one span of their answer, as infilling does.
    """

    min_rate: float = 0.02
    clean_prefix_share: float = 0.25
    full_mask_share: float = 0.02
    clean_tail_share: float = 0.0
    gap_share: float = 0.0

    def __post_init__(self) -> None:
        within("min_rate", self.min_rate, 1e-4, 1)
        probability("clean_prefix_share", self.clean_prefix_share)
        probability("full_mask_share", self.full_mask_share)
        probability("clean_tail_share", self.clean_tail_share)
        probability("gap_share", self.gap_share)
        if self.clean_prefix_share + self.full_mask_share > 1:
            problem = f"must be at most 1 together with clean_prefix_share = {self.clean_prefix_share}"
            raise FieldError("full_mask_share", self.full_mask_share, problem)


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A batch after the forward process."""

    tokens: Tensor  # [B, N] with masks
    masked: Tensor  # [B, N] bool, tokens to predict
    rate: Tensor  # [B] float32, mask rate of the answer region


def survival(betas: Tensor) -> Tensor:
    """Return the probability that a token is unmasked after each step of the chain, [T] (alpha bar)."""
    return (1 - betas).cumprod(-1)


def step(tokens: Tensor, beta: Tensor | float, *, mask_id: int, generator: torch.Generator) -> Tensor:
    """Draw from q(x_t | x_{t-1}), [..., N]; a mask stays a mask (LESS Eq. 4)."""
    return torch.where(_draw_masks(tokens, beta, generator), mask_id, tokens)


def marginal(tokens: Tensor, alive: Tensor | float, *, mask_id: int, generator: torch.Generator) -> Tensor:
    """Draw from q(x_t | x_0), [..., N]; a token survives with probability `alive` (LESS Eq. 5)."""
    return step(tokens, 1 - alive, mask_id=mask_id, generator=generator)


def stratified_rates(rows: int, *, min_rate: float, generator: torch.Generator) -> Tensor:
    """Draw mask rates [B], one from each of `rows` equal parts of [min_rate, 1], in random order."""
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
    """Mask the answer regions of rows [B, N] whose prompts and answers have the given lengths [B].

    The region is everything after the prompt: the answer and its tail of end tokens.
    """
    rows, columns = tokens.shape
    rate = stratified_rates(rows, min_rate=masking.min_rate, generator=generator)
    kind = torch.rand(rows, generator=generator, device=tokens.device)
    prefix = kind < masking.clean_prefix_share
    full = ~prefix & (kind < masking.clean_prefix_share + masking.full_mask_share)
    rate = rate.masked_fill(prefix | full, 1.0)
    # always leave the last token of the answer to predict
    kept = (torch.rand(rows, generator=generator, device=tokens.device) * answers).long()
    first = prompts + torch.where(prefix, kept, 0)
    last = _tail_cuts(prompts + answers, columns, share=masking.clean_tail_share, generator=generator)
    column = torch.arange(columns, device=tokens.device)
    open_ = (column >= first[:, None]) & (column < last[:, None])
    if masking.gap_share:
        gap, inside = _gaps(column, prompts, answers, share=masking.gap_share, generator=generator)
        rate = rate.masked_fill(gap, 1.0)
        open_ = torch.where(gap[:, None], inside, open_)
    masked = open_ & _draw_masks(tokens, rate[:, None], generator)
    return Corrupted(torch.where(masked, mask_id, tokens), masked, rate)


def _tail_cuts(ends: Tensor, columns: int, *, share: float, generator: torch.Generator) -> Tensor:
    """Return the column [B] from which a row stays unmasked: in the tail for a share of rows, else N."""
    chosen, inside = torch.rand(2, len(ends), generator=generator, device=ends.device)
    within_tail = ends + (inside * (columns - ends + 1)).long()
    return torch.where(chosen < share, within_tail, columns)


def _gaps(
    column: Tensor, prompts: Tensor, answers: Tensor, *, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return which rows keep all but a span of their answer, [B], and the columns of that span, [B, N]."""
    chosen, begins, ends = torch.rand(3, len(answers), generator=generator, device=answers.device)
    low = prompts + (begins * answers).long()
    high = low + 1 + (ends * (prompts + answers - low)).long()
    return chosen < share, (column >= low[:, None]) & (column < high[:, None])


def _draw_masks(tokens: Tensor, rate: Tensor | float, generator: torch.Generator) -> Tensor:
    return torch.rand(tokens.shape, generator=generator, device=tokens.device) < rate
