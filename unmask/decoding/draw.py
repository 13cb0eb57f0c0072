"""Token selection: argmax or nucleus sampling, with one random stream per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.decoding.summary import by_rows
from unmask.errors import FieldError, finite, share, whole
from unmask.types import Prediction

NoiseSource = Callable[[Tensor, int], Tensor]  # (running [B], width) -> uniform numbers [B, width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The rule that chooses a token at each position: the most likely one, or a drawn one.

    Use it in `Options`; a GenerationConfig makes one from its temperature, top_p and top_k.

    Attributes:
        temperature: 0 chooses the most likely token. A higher temperature makes draws vary more; >= 0.
        top_p: Draw from the smallest set of tokens whose total probability reaches this; above 0 and at most
            1, which is all tokens.
        top_k: Draw from this many of the most likely tokens. 0 means all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        finite("temperature", self.temperature)
        share("top_p", self.top_p)
        whole("top_k", self.top_k, 0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def draw(self, prediction: Prediction, noise: Tensor | None) -> Tensor:
        """Return a token per position, [B, W]: the argmax, or one drawn with `noise` [B, W] in (0, 1)."""
        if self.greedy or noise is None:
            return prediction.top1
        return by_rows(self._draw, prediction.full_logits, noise[..., None])

    def _draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Invert the cumulative distribution at the noise, most likely tokens first, [R, V] -> [R]."""
        values, ids = self.filter(logits.float()).sort(dim=-1, descending=True, stable=True)
        mass = values.softmax(-1).cumsum(-1)
        rank = (mass < noise * mass[..., -1:]).sum(-1, keepdim=True)
        return ids.gather(-1, rank.clamp(max=ids.shape[-1] - 1))[..., 0]

    def filter(self, logits: Tensor) -> Tensor:
        """Return the logits [B, W, V] after temperature, with -inf outside top-k and the nucleus."""
        if not self.greedy:  # subtract the best logit first, or a small temperature would overflow
            logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k:
            kept = logits.topk(min(self.top_k, logits.shape[-1])).values[..., -1:]
            logits = logits.masked_fill(logits < kept, -torch.inf)
        if self.top_p < 1:
            values, ids = logits.sort(dim=-1, descending=True, stable=True)
            probs = values.softmax(-1)
            outside = probs.cumsum(-1) - probs > self.top_p  # keep the token that reaches top_p
            logits = logits.masked_fill(torch.zeros_like(outside).scatter(-1, ids, outside), -torch.inf)
        return logits


class RowNoise:
    """Uniform numbers from one generator per row: a row's stream does not depend on its neighbours."""

    def __init__(self, seeds: Sequence[int], widths: Sequence[int] | None = None) -> None:
        """Make the generators. `widths` limits how many numbers each row draws at a time.

        A batch may have more columns than one of its rows alone, which must not change that row's stream.
        """
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._widths = widths

    def __call__(self, running: Tensor, width: int) -> Tensor:
        """Return uniform numbers in (0, 1), [B, width]; only running rows advance their stream."""
        if len(running) != len(self._generators):
            problem = f"must be {len(running)}, one for each row"
            raise FieldError("seeds", len(self._generators), problem)
        noise = torch.full((len(self._generators), width), 0.5, dtype=torch.float32)
        for row, (generator, runs) in enumerate(zip(self._generators, running.tolist(), strict=True)):
            if runs:
                own = width if self._widths is None else min(width, self._widths[row])
                noise[row, :own] = torch.rand(own, generator=generator, dtype=torch.float32)
        return noise.clamp(min=torch.finfo(torch.float32).tiny).to(running.device)
