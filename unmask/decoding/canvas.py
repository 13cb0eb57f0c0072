"""The canvas: the prompt and generation tokens of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.errors import FieldError, whole
from unmask.types import BlockGrid

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Canvas:
    """Tokens of a batch, left-padded so that every row generates from column `start`.

    For a model that attends block by block, `start` is where the first generated block begins. The last
    tokens of a prompt may be in this block, as `lay_out` shows.

    Attributes:
        tokens: [B, N] int64.
        attend: [B, N] bool, False on padding. None means no padding.
        start: The first generated column, right after the prompts if there is no `lead`.
        mask_id: The mask token.
        lead: [B] number of prompt tokens from `start` on. None means none.
        trailing: [B] number of padding columns after the end of each row. None means none.
    """

    tokens: Tensor
    attend: Tensor | None
    start: int
    mask_id: int
    lead: Tensor | None = None
    trailing: Tensor | None = None

    def to(self, device: torch.device | str) -> Canvas:
        """Return the canvas on another device."""
        attend, lead, trailing = (
            None if part is None else part.to(device) for part in (self.attend, self.lead, self.trailing)
        )
        return replace(self, tokens=self.tokens.to(device), attend=attend, lead=lead, trailing=trailing)

    def take(self, rows: Tensor) -> Canvas:
        """Return the rows with these numbers [n], in this order."""
        attend, lead, trailing = (
            None if part is None else part[rows] for part in (self.attend, self.lead, self.trailing)
        )
        return replace(self, tokens=self.tokens[rows], attend=attend, lead=lead, trailing=trailing)

    @property
    def starts(self) -> list[int]:
        """The first generated column of each row."""
        lead = [0] * len(self.tokens) if self.lead is None else self.lead.tolist()
        return [self.start + part for part in lead]

    @property
    def ends(self) -> list[int]:
        """The column after the last one of each row."""
        trailing = [0] * len(self.tokens) if self.trailing is None else self.trailing.tolist()
        return [self.tokens.shape[1] - padding for padding in trailing]

    @property
    def generated(self) -> Tensor:
        """The tokens from column `start` on, [B, N - start]; NO_TOKEN in columns of a prompt."""
        return hide(self.tokens[:, self.start :], self.in_prompt)

    @property
    def in_prompt(self) -> Tensor | None:
        """The columns from `start` on that belong to a prompt, [B, N - start] bool, or None if none do."""
        if self.lead is None:
            return None
        column = torch.arange(self.tokens.shape[1] - self.start, device=self.tokens.device)
        return column < self.lead[:, None]

    @property
    def real(self) -> Tensor | None:
        """The columns without padding on either side, [B, N] bool, or None if no row has any."""
        if self.trailing is None:
            return self.attend
        n = self.tokens.shape[1]
        own = torch.arange(n, device=self.tokens.device) < n - self.trailing[:, None]
        return own if self.attend is None else own & self.attend

    def masked(self, window: slice) -> Tensor:
        """Return the columns of the window that are still masked, [B, W] bool."""
        return self.tokens[:, window] == self.mask_id

    def commit(self, window: slice, where: Tensor, tokens: Tensor) -> Canvas:
        """Return a canvas with `tokens` [B, W] written where `where` [B, W] is true."""
        written = self.tokens.clone()
        part = written[:, window]
        torch.where(where, tokens, part, out=part)
        return Canvas(written, self.attend, self.start, self.mask_id, self.lead, self.trailing)

    def ended(self, eos_ids: Sequence[int]) -> Tensor:
        """Return the generated columns with an end token and no mask to its left, [B, N - start] bool."""
        return ended(self.generated, self.mask_id, eos_ids)

    def finished(self, eos_ids: Sequence[int]) -> Tensor:
        """Return the rows whose text has ended, even if masks are left after its end, [B] bool."""
        return self.ended(eos_ids).any(-1)

    def close(self, eos_ids: Sequence[int]) -> Canvas:
        """Return a canvas with end tokens in place of the masks after the end of the text."""
        if not eos_ids:
            return self
        behind = self.ended(eos_ids).cumsum(-1) > 0
        window = slice(self.start, self.tokens.shape[1])
        return self.commit(
            window, behind & self.masked(window), torch.full_like(behind, eos_ids[0], dtype=torch.int64)
        )


def hide(tokens: Tensor, where: Tensor | None) -> Tensor:
    """Return the tokens with NO_TOKEN where `where` is true. None means nowhere."""
    return tokens if where is None else tokens.masked_fill(where, NO_TOKEN)


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
    grid: BlockGrid | None = None,
    device: torch.device | str = "cpu",
) -> Canvas:
    """Return the prompts followed by `length` masks; `pins` sets tokens at offsets of the generation.

    On a grid that counts from a row's first token, a row gets enough masks to complete its last block.
    """
    _check(prompts, length, mask_id, pins or {})
    layout = lay_out([len(prompt) for prompt in prompts], length, grid)
    rows = []
    for prompt, padding, masks in zip(prompts, layout.padding, layout.masks, strict=True):
        rows.append([pad_id] * padding + list(prompt) + [mask_id] * masks)
    trailing = [layout.columns - len(row) for row in rows]
    rows = [row + [pad_id] * more for row, more in zip(rows, trailing, strict=True)]
    tokens = torch.tensor(rows)
    for offset, token in (pins or {}).items():
        if grid is not None:
            problem = "need attention to both sides, but this model attends block by block"
            raise FieldError("pins", pins, problem)
        tokens[:, layout.start + offset] = token
    attend = torch.arange(layout.columns)[None] >= torch.tensor(layout.padding)[:, None]
    lead = torch.tensor(layout.lead) if any(layout.lead) else None
    padded = attend if any(layout.padding) else None
    more = torch.tensor(trailing) if any(trailing) else None
    return Canvas(tokens, padded, layout.start, mask_id, lead, more).to(device)


class Layout(NamedTuple):
    """The columns of the prompts and masks of a batch."""

    padding: list[int]  # padding columns to the left of each prompt
    lead: list[int]  # tokens of each prompt from `start` on
    masks: list[int]  # masks of each row
    start: int
    columns: int


def lay_out(prompts: Sequence[int], length: int, grid: BlockGrid | None = None) -> Layout:
    """Place prompts of these lengths so that all rows generate in the same columns.

    On a grid, rows are padded by whole blocks until the block in which a row begins to generate has the same
    columns in every row. So column // length is the block in every row, and a batch advances block by block
    like a single row:

        length 4    |  -  -  -  - |  a  b  c  d |  e  M  M  M |  M  M ...     prompt of 5
                    |  a  b  c  d |  e  f  g  h |  i  j  M  M |  M  M ...     prompt of 10
                                                ^ start
    """
    if grid is None:
        start = max(prompts)
        padding, nothing = [start - n for n in prompts], [0] * len(prompts)
        return Layout(padding, nothing, [length] * len(prompts), start, start + length)
    size = grid.length
    lead = [n % size if grid.origin == "row" else 0 for n in prompts]
    before = [n - part for n, part in zip(prompts, lead, strict=True)]
    start = -(-max(before) // size) * size
    masks = [-(-(part + length) // size) * size - part for part in lead]
    if grid.origin == "canvas":  # a model with this grid decodes a short last block
        masks = [length] * len(prompts)
    columns = start + max(part + new for part, new in zip(lead, masks, strict=True))
    return Layout([start - n for n in before], lead, masks, start, columns)


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
