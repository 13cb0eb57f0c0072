"""What rows see of a forward pass, and what they remember of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.decoding.summary import ban, summarize
from unmask.types import Needs, Prediction


@dataclass(frozen=True, slots=True)
class Memory:
    """The history of some rows."""

    past: tuple[Prediction, ...] = ()  # newest first
    seen: Tensor | None = None  # [B] how many of `past` and of what came before it belong to the row
    carry: Tensor | None = None  # [B, ...] what the sampler handed back

    def push(
        self, now: Prediction, carry: Tensor | None, needs: Needs, running: Tensor | None = None
    ) -> Memory:
        """The memory after one more step; `running` [B] names the rows that took it, None: all."""
        kept = now if needs.logits or needs.recall else now.without_logits()
        past = (kept, *self.past)[: needs.lookback]
        # a row that idles now may run in a later block, which only a history that spans blocks will see
        if running is not None and needs.span:
            merged = tuple(new.where(running, old) for new, old in zip(past, self.past, strict=False))
            past = merged + past[len(merged) :]
            carry = _merge(running, carry, self.carry)
        seen = torch.zeros_like(now.top1[:, 0]) if self.seen is None else self.seen
        return Memory(past, seen + (1 if running is None else running.long()), carry)

    def take(self, rows: Tensor) -> Memory:
        """The memory of the rows with these numbers [n], in this order."""
        return Memory(
            tuple(before.take(rows) for before in self.past),
            None if self.seen is None else self.seen[rows],
            None if self.carry is None else self.carry[rows],
        )

    @staticmethod
    def join(parts: Sequence[Memory]) -> Memory:
        """The rows of several memories, which remember equally many steps, one after another."""
        seen = [part.seen for part in parts if part.seen is not None]
        carry = [part.carry for part in parts if part.carry is not None]
        return Memory(
            tuple(Prediction.join(before) for before in zip(*(part.past for part in parts), strict=True)),
            torch.cat(seen) if seen else None,
            torch.cat(carry) if carry else None,
        )


def predict(
    logits: Tensor, *, top_k: int, banned: Sequence[int], early: int, eos_ids: Sequence[int]
) -> Prediction:
    """What logits [B, W, V] say, with no `banned` token anywhere and no end in the first `early` columns."""
    ban(logits, banned)
    if early > 0:
        ban(logits[:, :early], eos_ids)
    return summarize(logits, top_k)


def _merge(rows: Tensor, new: Tensor | None, old: Tensor | None) -> Tensor | None:
    """`new` [B, ...] on the given rows, `old` on the rest."""
    if new is None or old is None:
        return new
    return torch.where(rows.view(-1, *[1] * (new.ndim - 1)), new, old)
