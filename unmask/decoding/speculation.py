"""Speculation: guess the next canvases, run them beside the real one, and recall their predictions.

A step whose canvas was guessed needs no forward. The sampler still decides every step from the prediction of
the real canvas, so only the number of forwards changes. This is FreeDave (arXiv:2510.00294) for any rule,
with or without a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.decoding.canvas import NO_TOKEN, Canvas, is_any
from unmask.decoding.observe import Outcome
from unmask.decoding.rows import Rows
from unmask.decoding.turns import Todo
from unmask.types import Cache, Prediction, Speculation


@dataclass(slots=True)
class Speculator:
    """The guesses of a batch and their predictions, until the next block."""

    speculation: Speculation
    mask_id: int
    last_ids: tuple[int, ...] = ()  # tokens that a partial decision must not write right of a mask
    canvas: Tensor | None = None  # [B, N] the real canvas
    tokens: Tensor | None = None  # [B, R, N] the guessed canvases
    predictions: Prediction | None = None  # the predictions of R * B rows, guess by guess

    def forget(self) -> None:
        """Drop the guesses of the last block."""
        self.tokens = self.predictions = None

    def recall(self, rows: Rows) -> None:
        """Give rows whose canvas was guessed the prediction of that guess, so that they need no forward."""
        self.canvas = rows.canvas.tokens
        if self.tokens is None or self.predictions is None or rows.prediction is None or rows.changed is None:
            return
        found = (rows.canvas.tokens[:, None] == self.tokens).all(-1) & rows.changed[:, None]
        hit, count = found.any(-1), len(found)
        place = found.int().argmax(-1) * count + torch.arange(count, device=found.device)
        rows.prediction = self.predictions.take(place).where(hit, rows.prediction)
        rows.changed = rows.changed & ~hit

    def guess(self, rows: Rows, window: slice, todo: Todo) -> Tensor | None:
        """Return guesses [B, R, N]: the canvas with the best 1, 2, ... masks of the block filled in.

        Masks are filled with the argmax of the last prediction. A guess that leaves no mask saves no forward,
        but with `partial` it may be the part of a decision that is committed.
        """
        last = rows.prediction
        if last is None or rows.changed is None:  # the first forward of a block
            return None
        count = min(self.speculation.rows - 1, int(self.useful(todo.active).max()))
        if count < 1:
            return None
        score = last.top_logits[..., 0] - last.lse
        if self.speculation.guess == "first":
            score = -torch.arange(score.shape[1], device=score.device).float().expand_as(score)
        order = score.masked_fill(~todo.active, -torch.inf).argsort(dim=-1, descending=True, stable=True)
        rank = torch.zeros_like(order).scatter(
            -1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
        )
        fill = todo.active[:, None] & (
            rank[:, None] < torch.arange(1, count + 1, device=rank.device)[:, None]
        )
        guesses = rows.canvas.tokens[:, None].repeat(1, count, 1)
        guesses[..., window] = torch.where(fill, last.top1[:, None], guesses[..., window])
        return guesses

    def useful(self, active: Tensor) -> Tensor:
        """Return the most guesses that rows with these masks [B, W] can use, [B]."""
        return active.sum(-1) - (0 if self.speculation.partial else 1)

    def keep(self, guesses: Tensor, parts: Sequence[Prediction], fresh: Tensor, number: Tensor) -> None:
        """Keep the first `number` [B] guesses [B, R, N] of fresh rows, and the prediction of each guess."""
        # a row of a batch may have run more guesses than it would have alone
        useless = torch.arange(guesses.shape[1], device=number.device) >= number[:, None]
        guesses = guesses.masked_fill(useless[..., None], NO_TOKEN)
        missing = self.speculation.rows - 1 - len(parts)
        if missing:
            guesses = torch.cat(
                [guesses, torch.full_like(guesses[:, :1], NO_TOKEN).expand(-1, missing, -1)], 1
            )
        predictions = Prediction.join([*parts, *[parts[-1]] * missing])
        if self.tokens is not None and self.predictions is not None:
            guesses = torch.where(fresh[:, None, None], guesses, self.tokens)
            predictions = predictions.where(fresh.repeat(self.speculation.rows - 1), self.predictions)
        else:
            guesses = guesses.masked_fill(~fresh[:, None, None], NO_TOKEN)
        self.tokens, self.predictions = guesses, predictions

    def shorten(self, outcome: Outcome, window: slice) -> Outcome:
        """Reduce a decision to the largest guess inside it, if there is one (FreeDave++)."""
        decision = outcome.decision
        if (
            not self.speculation.partial
            or self.canvas is None
            or self.tokens is None
            or decision.tokens is None
        ):
            return outcome
        guessed = self.tokens[..., window]
        filled = guessed != self.canvas[:, None, window]
        agrees = (decision.commit[:, None] & (guessed == decision.tokens[:, None])) | ~filled
        early = is_any(guessed, self.last_ids) & filled & ((guessed == self.mask_id).cumsum(-1) > 0)
        size = filled.sum(-1) * agrees.all(-1) * ~early.any(-1)
        largest = size.argmax(-1)[:, None, None].expand(-1, 1, filled.shape[-1])
        inside = filled.gather(1, largest)[:, 0] | (size.amax(-1) == 0)[:, None]
        return outcome._replace(decision=replace(decision, commit=decision.commit & inside))


def beside(canvas: Canvas, guesses: Tensor) -> Canvas:
    """Return a canvas of (1 + R) rows for each row: its own, then its guesses [B, R, N]."""
    tokens = torch.cat([canvas.tokens[:, None], guesses], dim=1).flatten(0, 1)
    attend = None if canvas.attend is None else canvas.attend.repeat_interleave(1 + guesses.shape[1], dim=0)
    trailing = None if canvas.trailing is None else canvas.trailing.repeat_interleave(1 + guesses.shape[1])
    return replace(canvas, tokens=tokens, attend=attend, trailing=trailing)


@dataclass(frozen=True, slots=True)
class SharedCache:
    """A cache whose rows are each shared by several rows of a forward. Only the first of them is stored."""

    cache: Cache
    copies: int  # rows of the forward for each row of the cache

    @property
    def persistent(self) -> bool:
        return self.cache.persistent

    def start_block(self, block: slice) -> None:
        self.cache.start_block(block)

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)

    def note_masks(self, window: slice, masked: Tensor) -> None:
        self.cache.note_masks(window, masked)

    def columns(self, need: slice, n: int) -> slice:
        return self.cache.columns(need, n)

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the first of every `copies` rows; return those of all rows."""
        own = slice(None, None, self.copies)
        stored = self.cache.update(layer, columns, k[own], v[own])
        keys, values = (side.repeat_interleave(self.copies, dim=0) for side in stored)
        keys[:, :, columns] = k
        values[:, :, columns] = v
        return keys, values

    def ran(self, columns: slice) -> None:
        self.cache.ran(columns)
