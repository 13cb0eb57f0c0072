"""The rules of the released LLaDA samplers in plain torch, for timing without the released code.

They keep its precision, its passes over the logits of every column and its host reads (docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reference import OtherSampler, PublishedModel


@dataclass(frozen=True, slots=True)
class View:
    """One step: logits of every column [1, N, V], masks of the block [1, N], quota and step number."""

    logits: Tensor
    masked: Tensor
    quota: int
    step: int  # counted from 0 in the block


Rule = Callable[[View], tuple[Tensor, Tensor]]  # tokens [1, N] and which of them to write, [1, N] bool


class Base:
    """Commit the quota of most confident positions, by a softmax in the model's precision."""

    def __call__(self, view: View) -> tuple[Tensor, Tensor]:
        tokens = view.logits.argmax(-1)
        mass = view.logits.softmax(-1)
        confidence = mass.gather(-1, tokens[..., None])[..., 0]
        return tokens, _most_confident(confidence, view)


class Less:
    """Require confidence 0.75, the same winner in three steps and a divergence <= 0.04; else the quota."""

    top_k: ClassVar[int] = 8
    depth: ClassVar[int] = 2

    def __init__(self) -> None:
        self.winners: list[Tensor] = []
        self.before: tuple[Tensor, Tensor] | None = None

    def __call__(self, view: View) -> tuple[Tensor, Tensor]:
        if view.step == 0:  # a new block: forget the history
            self.winners, self.before = [], None
        mass = view.logits.float().softmax(-1)
        top = mass.topk(self.top_k)
        tokens, confidence = mass.argmax(-1), top.values[..., 0]
        accepted = view.masked & (confidence >= 0.75)
        for winner in self.winners[-self.depth :]:
            accepted &= winner == tokens
        if self.before is None or len(self.winners) < self.depth:
            accepted &= False
        else:
            accepted &= _coarse_jsd((top.indices, top.values), self.before) <= 0.04
        self.winners.append(tokens)
        self.before = top.indices, top.values
        return tokens, accepted if bool(accepted.any()) else _most_confident(confidence, view)


class Klass:
    """Require confidence above 0.9 and two divergences in a row below 0.01, in float64; else the quota."""

    def __init__(self) -> None:
        self.before: Tensor | None = None
        self.divergences: list[Tensor] = []

    def __call__(self, view: View) -> tuple[Tensor, Tensor]:
        mass = view.logits.double().softmax(-1)
        tokens = mass.argmax(-1)
        confidence = mass.gather(-1, tokens[..., None])[..., 0]
        before = torch.zeros_like(mass) if self.before is None else self.before
        divergence = (mass * ((mass + 1e-12).log() - (before + 1e-12).log())).sum(-1)
        self.before, self.divergences = mass, [*self.divergences[-1:], divergence]
        ready = view.masked & (confidence > 0.9)
        for value in self.divergences:
            ready &= value < 0.01
        chosen = view.step > 0 and bool(ready.any())
        return tokens, ready if chosen else _most_confident(confidence, view)


def _most_confident(confidence: Tensor, view: View) -> Tensor:
    count = max(1, min(view.quota, int(view.masked.sum())))
    best = confidence.masked_fill(~view.masked, -torch.inf).topk(count).indices
    return torch.zeros_like(view.masked).scatter_(-1, best, True)


def _coarse_jsd(now: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]) -> Tensor:
    """Return the Jensen-Shannon divergence on the kept tokens of both sides and one bin for the rest, [1, N].

    Tokens that a side did not keep have no mass there.
    """
    same = now[0][..., :, None] == before[0][..., None, :]  # [1, N, K, K]
    p, q = now[1], before[1]
    shared = (same * q[..., None, :]).sum(-1)
    alone = q.masked_fill(same.any(-2), 0.0)
    left = torch.cat([p, torch.zeros_like(q), _rest(p)], -1)
    right = torch.cat([shared, alone, _rest(q)], -1)
    middle = (left + right) / 2
    return (_kl(left, middle) + _kl(right, middle)) / 2


def _rest(mass: Tensor) -> Tensor:
    return (1 - mass.sum(-1, keepdim=True)).clamp(min=0)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * ((p + 1e-12).log() - (q + 1e-12).log())).sum(-1)


@torch.no_grad()
def generate(
    model: PublishedModel,
    prompt: Tensor,
    *,
    start: Callable[[], Rule],
    steps: int,
    gen_length: int,
    block_length: int,
    mask_id: int,
) -> Tensor:
    """Decode block after block, each with its share of the steps. `start` makes a rule without a history."""
    rule, canvas = start(), F.pad(prompt, (0, gen_length), value=mask_id)
    column = torch.arange(canvas.shape[1], device=canvas.device)
    for first in range(prompt.shape[1], canvas.shape[1], block_length):
        block = (column >= first) & (column < first + block_length)
        for step, quota in enumerate(_quotas(block_length, steps * block_length // gen_length)):
            masked = (canvas == mask_id) & block
            if not bool(masked.any()):
                break
            logits = model(canvas).logits
            if model.shifted:  # state i predicts column i + 1
                logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
            tokens, commit = rule(View(logits, masked, quota, step))
            canvas = torch.where(commit, tokens, canvas)
    return canvas


def _quotas(masks: int, steps: int) -> Iterator[int]:
    """Split the masks evenly over the steps; earlier steps get the remainder."""
    share, more = divmod(masks, steps)
    yield from (share + (step < more) for step in range(steps))


RULES: dict[str, Callable[[], Rule]] = {"base": Base, "klass": Klass, "less": Less}


def released() -> Iterator[OtherSampler]:
    """Yield one sampler per rule."""
    for name, rule in RULES.items():
        yield OtherSampler(f"{name} as released, in plain torch", generate, {"start": rule})
