"""The canvas: the prompt and generation tokens of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.errors import FieldError, whole


@dataclass(frozen=True, slots=True)
class Canvas:
    """Tokens of a batch, left-padded so that every row generates from column `start`.

    Attributes:
        tokens: [B, N] int64.
        attend: [B, N] bool, False on padding; None: no padding.
        start: The first generated column, right after the prompts.
        mask_id: The mask token.
    """

    tokens: Tensor
    attend: Tensor | None
    start: int
    mask_id: int

    def to(self, device: torch.device | str) -> Canvas:
        """Return the canvas on another device."""
        attend = None if self.attend is None else self.attend.to(device)
        return replace(self, tokens=self.tokens.to(device), attend=attend)

    def take(self, rows: Tensor) -> Canvas:
        """Return the rows with these numbers [n], in this order."""
        attend = None if self.attend is None else self.attend[rows]
        return replace(self, tokens=self.tokens[rows], attend=attend)

    def masked(self, window: slice) -> Tensor:
        """Return the columns of the window that are still masked, [B, W] bool."""
        return self.tokens[:, window] == self.mask_id

    def commit(self, window: slice, where: Tensor, tokens: Tensor) -> Canvas:
        """Return a canvas with `tokens` [B, W] written where `where` [B, W] is true."""
        written = self.tokens.clone()
        part = written[:, window]
        torch.where(where, tokens, part, out=part)
        return replace(self, tokens=written)

    def ended(self, eos_ids: Sequence[int]) -> Tensor:
        """Return the generated columns with an end token and no mask to its left, [B, N - start] bool."""
        return ended(self.tokens[:, self.start :], self.mask_id, eos_ids)

    def finished(self, eos_ids: Sequence[int]) -> Tensor:
        """Return the rows whose text has ended, even if masks are left after its end, [B] bool."""
        return self.ended(eos_ids).any(-1)

    def close(self, eos_ids: Sequence[int]) -> Canvas:
        """Return a canvas whose masks after the end of the text are end tokens too."""
        if not eos_ids:
            return self
        behind = self.ended(eos_ids).cumsum(-1) > 0
        window = slice(self.start, self.tokens.shape[1])
        return self.commit(
            window, behind & self.masked(window), torch.full_like(behind, eos_ids[0], dtype=torch.int64)
        )


def ended(generated: Tensor, mask_id: int, eos_ids: Sequence[int]) -> Tensor:
    """Return the columns that hold an end token with no mask to its left, [B, L] bool."""
    return is_any(generated, eos_ids) & ((generated == mask_id).cumsum(-1) == 0)


def is_any(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Return where tokens are one of a few ids, without copying the ids to the device."""
    if not ids:
        return torch.zeros_like(tokens, dtype=torch.bool)
    matches = tokens == ids[0]
    for token in ids[1:]:
        matches |= tokens == token
    return matches


def blank(
    prompts: Sequence[Sequence[int]],
    length: int,
    *,
    mask_id: int,
    pad_id: int,
    pins: Mapping[int, int] | None = None,
    device: torch.device | str = "cpu",
) -> Canvas:
    """Return the prompts followed by `length` masks; `pins` sets tokens at offsets of the generation."""
    _check(prompts, length, mask_id, pins or {})
    start = max(len(prompt) for prompt in prompts)
    padding = [start - len(prompt) for prompt in prompts]
    tokens = torch.tensor(
        [
            [pad_id] * pad + list(prompt) + [mask_id] * length
            for pad, prompt in zip(padding, prompts, strict=True)
        ]
    )
    for offset, token in (pins or {}).items():
        tokens[:, start + offset] = token
    attend = torch.arange(start + length)[None] >= torch.tensor(padding)[:, None]
    return Canvas(tokens, attend if any(padding) else None, start, mask_id).to(device)


def _check(prompts: Sequence[Sequence[int]], length: int, mask_id: int, pins: Mapping[int, int]) -> None:
    whole("length", length, 1)
    if not prompts:
        raise FieldError("prompts", prompts, "must hold at least one prompt")
    for row, prompt in enumerate(prompts):
        if not prompt:
            remedy = "a beginning-of-text token will do"
            raise FieldError(f"prompts[{row}]", prompt, "must have at least one token", remedy)
        if mask_id in prompt:
            remedy = "remove it, or use infilling to fill gaps"
            raise FieldError(f"prompts[{row}]", mask_id, "must not hold the mask token", remedy)
    for offset, token in pins.items():
        if not 0 <= offset < length:
            raise FieldError("pins", offset, f"must lie inside the generation, at offsets 0 to {length - 1}")
        if token == mask_id:
            raise FieldError(f"pins[{offset}]", token, "must not be the mask token")
