"""A model that says what it is told to, in the order it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tests.checkpoints import LLADA_SPECIAL
from tests.text.conftest import build_tokenizer
from unmask.models.text.tokens import Tokenizer
from unmask.samplers import Base
from unmask.types import Cache, Decision, ModelInfo, Needs, Observation

TOKENIZER = build_tokenizer("llada_tiny")
MASK, EOS, BOS = 509, 500, 499
assert LLADA_SPECIAL[MASK] == "<|mdm_mask|>"


@dataclass
class Scripted:
    """Predicts `script` in the last columns, the ones with a small number in `order` most confidently.

    Without an order the script is committed from left to right; `second` is the runner-up everywhere.
    """

    script: Sequence[int]
    order: Sequence[int] = ()
    second: int = 0
    info: ModelInfo = field(
        default_factory=lambda: ModelInfo(vocab_size=512, mask_id=MASK, eos_ids=(EOS,), pad_id=EOS)
    )
    tokenizer: Tokenizer = TOKENIZER
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        self.seen.append(tokens.clone())
        order = self.order or range(len(self.script))
        logits = torch.zeros(*tokens.shape, self.info.vocab_size)
        logits[..., self.second] = 1
        first = tokens.shape[1] - len(self.script)
        for offset, token in enumerate(self.script):
            logits[:, first + offset, token] = 12 - 8 * order[offset] / len(self.script)
        return logits[:, window]


def saying(text: str, order: Sequence[int] = (), *, ends: bool = True) -> Scripted:
    """A model that writes this text."""
    return Scripted([*TOKENIZER.encode(text), *([EOS] if ends else [])], order)


@dataclass(frozen=True)
class Foreign:
    """A sampler that writes the same token everywhere, whether the vocabulary has it or not."""

    token: int
    needs: Needs = field(default_factory=Needs)

    def decide(self, obs: Observation) -> Decision:
        return replace(Base().decide(obs), tokens=torch.full_like(obs.drawn, self.token))
