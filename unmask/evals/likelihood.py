"""The likelihood of an answer under a masked diffusion model: LLaDA's Monte-Carlo bound and greedy unmasking.

Of an answer of l tokens, k are masked: k is uniform in 1..l, and the positions are uniform too. The bound on
the log-likelihood is the mean of -(l / k) times the cross-entropy of the masked tokens (arXiv:2502.09992).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.guidance import Guided
from unmask.decoding.loop import denoise
from unmask.decoding.options import Options
from unmask.decoding.plan import plan
from unmask.decoding.summary import by_rows
from unmask.errors import FieldError, whole
from unmask.samplers.base import Base
from unmask.text.prompts import TextModel, check_ids, device_of
from unmask.types import MaskedLM

DRAWS = 128  # LLaDA's mc_num
MAX_COLUMNS = 8192  # answer columns in a forward; their logits take most of the memory


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of a context and of the answer to it."""

    context: tuple[int, ...]
    answer: tuple[int, ...]

    def check(self, model: MaskedLM) -> None:
        """Raise if the model cannot read the pair."""
        for name in ("context", "answer"):
            check_ids(name, getattr(self, name), model.info)
            if not getattr(self, name):
                raise FieldError(name, getattr(self, name), "must have at least one token")
        total = len(self.context) + len(self.answer)
        if total > model.info.max_length:
            problem = f"must have at most {model.info.max_length} tokens together with the answer"
            raise FieldError("context", total, problem, "shorten it, because the model cannot read more")

    def seed(self, run: int, *, paired: bool) -> int:
        """Return a seed for this pair alone, so that its draws do not depend on other pairs."""
        digest = sha256(repr((run, self.context, () if paired else self.answer)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class Masks:
    """The distinct masks among the draws, and the weight of each in the mean."""

    masked: Tensor  # [U, l] bool
    weight: Tensor  # [U] float64: share of the draws / mask rate


def log_likelihoods(
    model: TextModel,
    pairs: Sequence[Pair],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    paired: bool = True,
    guidance: float = 0.0,
    batch_size: int = 32,
) -> list[float]:
    """Return the bound on log p(answer | context) of every pair; order and batch size do not matter.

    With `paired`, answers of one length to one context get the same masks, so that luck decides nothing.
    """
    whole("draws", draws, 1)
    total = [0.0] * len(pairs)
    pairs, answer_of = _by_blocks(model, pairs)
    for places in _batches(model, pairs, batch_size):
        masks = [draw_masks(len(pairs[i].answer), draws, pairs[i].seed(seed, paired=paired)) for i in places]
        owner = [i for i, mask in zip(places, masks, strict=True) for _ in mask.weight]
        masked = torch.cat([mask.masked for mask in masks])
        weight = torch.cat([mask.weight for mask in masks])
        size = max(1, min(batch_size, MAX_COLUMNS // masked.shape[1]))
        for first in range(0, len(owner), size):
            rows = slice(first, first + size)
            losses = _losses(model, [pairs[i] for i in owner[rows]], masked[rows], guidance)
            for i, loss in zip(owner[rows], (losses * weight[rows]).tolist(), strict=True):
                total[answer_of[i]] -= loss
    return total


def greedily_decoded(
    model: TextModel, pairs: Sequence[Pair], *, guidance: float = 0.0, batch_size: int = 32
) -> list[bool]:
    """Return whether greedy unmasking, one token per step by confidence, writes each answer.

    It costs a forward per token of the answer, and stops at the first token that differs.
    """
    same = [True] * len(pairs)
    pairs, answer_of = _by_blocks(model, pairs)
    for places in _batches(model, pairs, batch_size):
        equals = _greedy(model, [pairs[i] for i in places], guidance)
        for i, equal in zip(places, equals, strict=True):
            same[answer_of[i]] &= equal
    return same


def _by_blocks(model: TextModel, pairs: Sequence[Pair]) -> tuple[Sequence[Pair], Sequence[int]]:
    """Return the pairs to score, and the number of the pair that each is a part of.

    A model that attends block by block has seen masks only in a text's last block. So an answer is cut where
    blocks end, and each part is scored after all of the text before it.
    """
    grid = model.info.grid
    if grid is None:
        return pairs, range(len(pairs))
    parts, numbers = list[Pair](), list[int]()
    for number, pair in enumerate(pairs):
        pair.check(model)
        lead = len(pair.context) % grid.length if grid.origin == "row" else 0
        ends = [*range(grid.length - lead, len(pair.answer), grid.length), len(pair.answer)]
        for first, last in pairwise([0, *ends]):
            parts.append(Pair(pair.context + pair.answer[:first], pair.answer[first:last]))
            numbers.append(number)
    return parts, numbers


def draw_masks(length: int, draws: int, seed: int) -> Masks:
    """Draw masks for an answer of `length` tokens; their sizes are spread evenly over 1..length."""
    generator = torch.Generator().manual_seed(seed)
    sizes = stratified_sizes(length, draws, int(torch.randint(length, (), generator=generator)))
    # double precision avoids ties, which would favor the left position
    order = torch.rand(draws, length, dtype=torch.float64, generator=generator).argsort(-1).argsort(-1)
    masked, times = torch.unique(order < sizes[:, None], dim=0, return_counts=True)
    return Masks(masked, times * length / (masked.sum(-1, dtype=torch.float64) * draws))


def stratified_sizes(length: int, draws: int, first: int) -> Tensor:
    """Return evenly spaced sizes in 1..length, [draws]; each is uniform if `first` is.

    LLaDA rounds half to even here, so some sizes occur more often than others; rounding down is fair.
    """
    return (first + torch.arange(draws) * length // draws) % length + 1


def _batches(model: TextModel, pairs: Sequence[Pair], batch_size: int) -> Iterator[list[int]]:
    """Yield the indices of pairs in batches with answers of one length, longest contexts first."""
    whole("batch_size", batch_size, 1)
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for place, pair in enumerate(pairs):
        pair.check(model)
        by_length[len(pair.answer)].append(place)
    for places in by_length.values():
        places.sort(key=lambda place: -len(pairs[place].context))
        for first in range(0, len(places), batch_size):
            yield places[first : first + batch_size]


def _canvas(model: TextModel, pairs: Sequence[Pair]) -> tuple[Canvas, Tensor]:
    """Return the contexts followed by masks, and the answers that the masks hide, [B, l]."""
    answers, info = torch.tensor([pair.answer for pair in pairs], device=device_of(model)), model.info
    contexts, length = [pair.context for pair in pairs], answers.shape[1]
    on_columns = info.grid is not None and info.grid.origin == "canvas"  # then an answer begins a block
    canvas = blank(
        contexts,
        length,
        mask_id=info.mask_id,
        pad_id=info.pad_id,
        grid=info.grid if on_columns else None,
        device=answers.device,
    )
    real = slice(0, canvas.start + length)
    attend = None if canvas.attend is None else canvas.attend[:, real]
    return replace(canvas, tokens=canvas.tokens[:, real], attend=attend), answers


def _losses(model: TextModel, pairs: Sequence[Pair], masked: Tensor, guidance: float) -> Tensor:
    """Return the cross-entropy of the masked tokens summed over each row, [B] float64 on the CPU."""
    canvas, answers = _canvas(model, pairs)
    hidden = masked.to(answers.device)
    window = slice(canvas.start, canvas.tokens.shape[1])
    noisy = canvas.commit(window, ~hidden, answers)
    with torch.no_grad():
        logits = _guided(model, canvas, guidance)(noisy.tokens, noisy.attend, window, None)
        losses = by_rows(_cross_entropy, logits[hidden], answers[hidden][:, None])
    if losses.isnan().any():
        raise ValueError("the model returned NaN or infinite logits; check its weights and dtype")
    per_token = torch.zeros(masked.shape, dtype=torch.float64)
    per_token[masked] = losses.cpu().double()
    return per_token.sum(-1)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log p of the targets, [R, V] and [R, 1] -> [R]."""
    return F.cross_entropy(logits.float(), targets[:, 0], reduction="none")


def _greedy(model: TextModel, pairs: Sequence[Pair], guidance: float) -> list[bool]:
    """Return whether the loop writes each answer; all answers have the same length."""
    canvas, answers = _canvas(model, pairs)
    length = answers.shape[1]

    def differs(tokens: Tensor) -> Tensor:
        generated = tokens[:, canvas.start :]
        return ((generated != canvas.mask_id) & (generated != answers)).any(-1)

    steps = denoise(
        _guided(model, canvas, guidance),
        canvas,
        Base(),
        plan(canvas.start, length, steps=length),
        # the linear schedule commits one token per step; a predicted mask token counts as different
        Options(schedule="linear", banned_ids=(), stop_at_eos=False, fill_leftovers=False),
        stop=differs,
    )
    tokens = canvas.tokens
    for step in steps:
        tokens = step.tokens
    same: list[bool] = (tokens[:, canvas.start :] == answers).all(-1).tolist()
    return same


def _guided(model: MaskedLM, canvas: Canvas, guidance: float) -> MaskedLM:
    """Return the model with classifier-free guidance towards the contexts."""
    return Guided.on(model, canvas, guidance) if guidance else model
