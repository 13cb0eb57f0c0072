"""The core types: predictions, observations, decisions, steps, and the protocols of models and samplers.

Shape letters: B rows, N canvas columns, W window columns, K kept candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

ScheduleName = Literal["linear", "dream", "block", "remaining"]
MAX_LOOKBACK = 64  # earlier predictions that a sampler may keep
MAX_TOP_K = 1024  # candidates that it may keep per position


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states and the head: far smaller than the logits, and enough to recompute a few of them."""

    states: Tensor  # [B, W, D]
    weight: Tensor  # [V, D], the head

    def logits_of(self, ids: Tensor) -> Tensor:
        """Return the logits of the given tokens [B, W, K], in float32."""
        rows = self.weight[ids]
        # not a matmul: compiled, one kernel reads the rows without storing them
        return _rounded((rows.float() * self.states[..., None, :].float()).sum(-1), rows.dtype)

    def each(self, work: Callable[..., Tensor], *others: HiddenStates) -> HiddenStates:
        """Apply `work` to the states and those of the others."""
        return replace(self, states=work(self.states, *(other.states for other in others)))


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round x to the dtype, as the head rounds its logits, and return it in float32."""
    narrow = x.to(dtype)
    # Inductor folds the two casts away; the bit view keeps the rounding
    return ((narrow.view(torch.int16) & -1).view(dtype) if narrow.itemsize == 2 else narrow).float()


@dataclass(frozen=True, slots=True)
class Attention:
    """How the columns of a canvas look at each other, and how sure the model is of each."""

    weights: Tensor  # [B, N, N] float32, query by key, averaged over all heads and the last layers
    confidence: Tensor  # [B, N] float32, probability of the most likely token
    real: Tensor  # [B, N] bool, no padding
    filled: Tensor  # [B, N] bool, real and not a mask
    first: int  # the window's first column

    def each(self, work: Callable[..., Tensor], *others: Attention) -> Attention:
        """Apply `work` to each tensor and its counterparts in the others."""
        tensors = [(part.weights, part.confidence, part.real, part.filled) for part in (self, *others)]
        weights, confidence, real, filled = (work(*same) for same in zip(*tensors, strict=True))
        return Attention(weights, confidence, real, filled, self.first)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The summary of a forward for every window column, small enough to keep."""

    top_ids: Tensor  # [B, W, K] int64, most likely first; ties go to the lower id
    top_logits: Tensor  # [B, W, K] float32
    lse: Tensor  # [B, W] float32, log-sum-exp over the vocabulary
    logits: Tensor | None = None  # [B, W, V] float32, or the model's dtype if a kernel reads them
    hidden: HiddenStates | None = None  # in place of the logits
    shadow: Prediction | None = None  # by columns that do not attend to the predicted one, if needs.shadow
    attention: Attention | None = None  # if needs.attention

    @property
    def top1(self) -> Tensor:
        """Most likely token, [B, W]."""
        return self.top_ids[..., 0]

    @property
    def top_probs(self) -> Tensor:
        """Probabilities of the kept candidates, [B, W, K]."""
        return (self.top_logits - self.lse[..., None]).exp()

    @property
    def full_logits(self) -> Tensor:
        """The logits over the whole vocabulary, [B, W, V]. Raises if they were not kept."""
        if self.logits is None:
            kept = "no logits" if self.hidden is None else "no full logits, as its sampler asked for a few"
            raise ValueError(f"this prediction kept {kept}; ask for them with Needs(logits=True)")
        return self.logits

    def top(self, k: int) -> Prediction:
        """Return the prediction with at most k candidates."""
        return replace(self, top_ids=self.top_ids[..., :k], top_logits=self.top_logits[..., :k])

    def without_logits(self) -> Prediction:
        shadow = None if self.shadow is None else self.shadow.without_logits()
        return replace(self, logits=None, hidden=None, shadow=shadow)

    def where(self, rows: Tensor, other: Prediction) -> Prediction:
        """Return this prediction on the rows [B] that are true, `other` on the rest."""

        def choose(ours: Tensor, theirs: Tensor) -> Tensor:
            return torch.where(rows.view(-1, *[1] * (ours.ndim - 1)), ours, theirs)

        return self.each(choose, other)

    def put(self, rows: Tensor, part: Prediction) -> Prediction:
        """Return this prediction with `part` on the rows with these numbers [n]."""
        return self.each(lambda ours, theirs: ours.index_copy(0, rows, theirs), part)

    def take(self, rows: Tensor | slice) -> Prediction:
        """Return the prediction of the rows with these numbers [n], in this order."""
        return self.each(lambda tensor: tensor[rows])

    @staticmethod
    def join(parts: Sequence[Prediction]) -> Prediction:
        """Join the rows of several predictions of the same width."""
        return parts[0] if len(parts) == 1 else parts[0].each(lambda *rows: torch.cat(rows), *parts[1:])

    def each(self, work: Callable[..., Tensor], *others: Prediction) -> Prediction:
        """Apply `work` to each tensor and its counterparts; leave out a tensor that one of them lacks."""

        def apply(name: str) -> Any:
            same = [getattr(part, name) for part in (self, *others)]
            if any(part is None for part in same):
                return None
            return work(*same) if isinstance(same[0], Tensor) else same[0].each(work, *same[1:])

        return Prediction(*(apply(field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a sampler sees in one step."""

    now: Prediction  # with its full logits, or with hidden states where the sampler needs only a few of them
    past: tuple[Prediction, ...]  # newest first, at most needs.lookback
    seen: Tensor  # [B] number of `past` predictions that belong to this row
    drawn: Tensor  # [B, W] token that each position would commit now
    masked: Tensor  # [B, W] bool, still masked
    active: Tensor  # [B, W] bool, still masked and inside the current block
    quota: Tensor  # [B] positions that the fixed schedule would commit now
    rate: Tensor  # [B] share of the masks that the fixed schedule would commit now
    step: Tensor  # [B] steps already taken in this block
    progress: Tensor  # [B] share of the step budget used, this step included
    carry: Tensor | None  # Decision.carry of the last step; None at the start of a history
    noise: Tensor | None  # [B, W] uniform in (0, 1), only if needs.noise
    blockwise: bool  # semi-autoregressive regime; False: the whole generation is one block
    eos_ids: tuple[int, ...] = ()  # the tokens that end a text
    tokens: Tensor | None = None  # [B, W] the tokens of the window, only if needs.revoke
    written: Tensor | None = None  # [B, W] bool, columns that may be revoked or rewritten, likewise

    @property
    def shadow(self) -> Prediction:
        """The predictions by columns that do not attend to the predicted one. Raises if not asked for."""
        if self.now.shadow is None:
            raise ValueError("this prediction has no shadow columns; ask for them with Needs(shadow=True)")
        return self.now.shadow

    @property
    def attention(self) -> Attention:
        """The attention of all columns. Raises if not asked for."""
        if self.now.attention is None:
            raise ValueError("this prediction has no attention; ask for it with Needs(attention=LAYERS)")
        return self.now.attention


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a sampler: which positions to commit."""

    commit: Tensor  # [B, W] bool, subset of obs.masked
    eligible: Tensor  # [B, W] bool, positions that the rule accepted before the policy chose
    forced: Tensor  # [B] bool, the fallback chose, not the rule
    carry: Tensor | None = None  # [B, ...], comes back in the next Observation
    tokens: Tensor | None = None  # [B, W] tokens to write; None: obs.drawn
    signals: Mapping[str, Tensor] = field(default_factory=dict)  # [B, W] each; read by traces only
    revoke: Tensor | None = None  # [B, W] bool, written columns to mask again; needs Needs(revoke=True)
    rewrite: Tensor | None = None  # [B, W] bool, written columns that take `tokens`; needs Needs(revoke=True)
    open: Tensor | None = None  # [B] bool, rows whose block goes on without masks; needs Needs(revoke=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to guess the next canvases, which run beside the real one."""

    rows: int = 4  # of a forward for each row: the real canvas and rows - 1 guesses
    guess: Literal["surest", "first"] = "surest"  # guesses fill the surest masks first, or the first ones
    partial: bool = False  # commit only a part of a decision if that part was guessed (FreeDave++)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The inputs that the loop must prepare for a sampler."""

    top_k: int = 2  # candidates kept per position
    lookback: int = 0  # earlier predictions kept
    logits: bool = False  # keep full logits in them (KL)
    gather_logits: bool = False  # logits of a few tokens, of this and of earlier predictions (exact JSD)
    span: bool = False  # window = whole generation, history kept across blocks (KLASS, Prophet)
    noise: bool = False  # a fresh uniform number per position and step
    min_length: int = 1  # smallest number of generated columns
    revoke: bool = False  # allow to mask or rewrite tokens committed in the current block
    speculation: Speculation | None = None  # run guesses of the next canvases in the same forward
    shadow: bool = False  # predict each window column once more, by one that does not attend to it
    attention: int = 0  # the last layers whose attention is averaged; 0: none
    carry: int = 0  # numbers per column that it hands back in Decision.carry
    whole_blocks: bool = False  # a text ends only when its block is complete: the end may be edited away
    extra_steps: int = 0  # that a block may take beyond one per column


class Sampler(Protocol):
    """A sampler is a value: its memory travels in the Observation."""

    @property
    def needs(self) -> Needs:
        """The inputs to prepare; constant during a run."""
        ...

    def decide(self, obs: Observation) -> Decision:
        """Return the positions to commit now; called once per step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrid:
    """Block-causal attention: a column sees its own block and the blocks before it."""

    length: int  # columns of a block
    origin: Literal["row", "canvas"] = "row"  # count from a row's first real token, or from column 0
    offset: int = 0  # where block 0 begins, counted from the origin
    first_alone: bool = False  # the block before predicts the first column, which is decoded by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about a model that the loop and `generate` use."""

    vocab_size: int  # width of the logits
    mask_id: int
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    max_length: int = 4096
    new_tokens: int = 256  # default length of a generation
    block_length: int | None = None  # the family's default; None: full sequence
    grid: BlockGrid | None = None  # block-causal attention; None: every column sees every other
    schedule: ScheduleName = "linear"  # the family's fixed schedule
    deterministic: bool = True  # same tokens, same logits: an unchanged canvas needs no new forward
    separable: bool = False  # a row's logits depend on that row alone: rows may be run without the others


class Cache(Protocol):
    """Keys and values kept between forwards; the model asks it which columns to run."""

    @property
    def persistent(self) -> bool:
        """Whether it keeps rows from block to block; else the first forward of a block stores all anew."""
        ...

    def start_block(self, block: slice) -> None:
        """Start to decode this block; the columns before it are finished."""
        ...

    def columns(self, need: slice, n: int) -> slice:
        """Return the columns to run, of a canvas of `n`, to predict those in `need`; change nothing."""
        ...

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the columns that ran, and return those of all, [B, H, N, D] each."""
        ...

    def ran(self, columns: slice) -> None:
        """Take note of a complete forward of these columns."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep these of the stored rows [n], in this order; called between start_block and a forward."""
        ...


class MaskedLM(Protocol):
    """A masked language model that predicts every column of a window from the whole canvas."""

    @property
    def info(self) -> ModelInfo: ...

    def __call__(self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None) -> Tensor:
        """Return logits, [B, N] -> [B, W, V]; logits[:, j] is the distribution of column window.start + j.

        The loop owns the tensor afterwards and may write into it.
        """
        ...


@runtime_checkable
class HeadedLM(Protocol):
    """A masked language model whose logits are the product of hidden states and a head.

    The loop asks it for hidden states and computes logits in parts. To change the logits of such a model,
    override `logits` and let `head_weight` be None.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def head_weight(self) -> Tensor | None:
        """[V, D], or None if the head is not a plain matrix."""
        ...

    def __call__(
        self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None
    ) -> Tensor: ...

    def hidden_states(
        self, tokens: Tensor, attend: Tensor | None, window: slice, cache: Cache | None
    ) -> Tensor:
        """Return the hidden states that predict the window's columns, [B, W, D]."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of hidden states, [B, W, D] -> [B, W, V]."""
        ...


@runtime_checkable
class ShadowLM(Protocol):
    """A model that predicts a column from all others, for Needs(shadow=True)."""

    def shadow_states(self, tokens: Tensor, attend: Tensor | None, window: slice) -> tuple[Tensor, Tensor]:
        """Return two predictions of the window's columns: as always, and without attending to the column.

        Both are hidden states [B, W, D] if the model has a head, else logits [B, W, V].
        """
        ...


@runtime_checkable
class AttentionLM(Protocol):
    """A model that shows its attention, for Needs(attention=LAYERS)."""

    def attention_states(self, tokens: Tensor, attend: Tensor | None, layers: int) -> tuple[Tensor, Tensor]:
        """Return the prediction of every column and the attention [B, N, N] of the last layers, float32.

        The prediction is hidden states [B, N, D] if the model has a head, else logits [B, N, V].
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One reverse step, as traces, streams and counters see it."""

    index: int  # counted from 1 over the whole run; a leftover fill repeats the last index
    block: int
    window: slice
    tokens: Tensor  # [B, N] after the commit
    drawn: Tensor  # [B, W]
    decision: Decision
    running: Tensor  # [B] bool, rows that took this step
    fresh: Tensor  # [B] bool, rows whose canvas had changed since their last forward
    forward: bool  # False: nothing had changed, so the last prediction was used again
    leftover: bool = False  # True: the budget was spent, and the remaining masks took their argmax
    revocable: slice | None = None  # columns that a later step may mask or rewrite; None: none
    guesses: Tensor | None = None  # [B] guesses of the next canvases that ran beside a fresh row; None: none


Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Generic[Count]):
    """The cost of decoding: a number for one row, a tensor [B] for a batch."""

    steps: Count  # reverse steps
    forwards: Count  # forward passes that the row needed; a step on an unchanged canvas needs none
    rows: Count  # rows of these forwards: its own, and guesses of the next canvases
    accepted: Count  # tokens committed by the rule
    forced: Count  # tokens committed by the fallback
    forced_steps: Count  # steps in which the fallback acted
    empty_steps: Count  # steps in which nothing was eligible
    leftovers: Count  # tokens filled in after the budget was spent
    revoked: Count  # tokens masked again or rewritten after their commit

    @property
    def forced_share(self) -> Any:
        """Share of steps in which the fallback acted, a float or [B]."""
        return self.forced_steps / (self.steps + (self.steps == 0))

    @property
    def empty_share(self) -> Any:
        """Share of steps in which nothing was eligible (the released code's fallback statistic)."""
        return self.empty_steps / (self.steps + (self.steps == 0))
