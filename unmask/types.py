"""The core types: predictions, observations, decisions, steps, and the protocols of models and samplers.

Shape letters: B rows, N canvas columns, W window columns, K kept candidates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

ScheduleName = Literal["linear", "dream", "block", "remaining"]
MAX_LOOKBACK = 64  # earlier predictions that a sampler may keep
MAX_TOP_K = 1024  # candidates that it may keep per position


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states and the head: far smaller than the logits, and enough to recompute a few of them.

    Attributes:
        states: [B, W, D].
        weight: The head, [V, D].
    """

    states: Tensor
    weight: Tensor

    def logits_of(self, ids: Tensor) -> Tensor:
        """Return the logits of the given tokens [B, W, K], in float32."""
        rows = self.weight[ids]
        # not a matmul: compiled, one kernel reads the rows without storing them
        return _rounded((rows.float() * self.states[..., None, :].float()).sum(-1), rows.dtype)

    def each(self, work: Callable[..., Tensor], *others: HiddenStates) -> HiddenStates:
        """Apply `work` to the states and those of the others."""
        return replace(self, states=work(self.states, *(other.states for other in others)))

    def split(self, size: int) -> list[HiddenStates]:
        """Return parts of `size` rows."""
        return [HiddenStates(states, self.weight) for states in torch.split(self.states, size)]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round x to the dtype, as the head rounds its logits, and return it in float32."""
    narrow = x.to(dtype)
    # Inductor folds the two casts away; the bit view keeps the rounding
    return ((narrow.view(torch.int16) & -1).view(dtype) if narrow.itemsize == 2 else narrow).float()


@dataclass(frozen=True, slots=True)
class Attention:
    """How the columns of a canvas look at each other, and how sure the model is of each.

    Attributes:
        weights: [B, N, N] float32, query by key, averaged over all heads and the last layers.
        confidence: [B, N] float32, probability of the most likely token.
        real: [B, N] bool, no padding.
        filled: [B, N] bool, real and not a mask.
        first: The window's first column.
    """

    weights: Tensor
    confidence: Tensor
    real: Tensor
    filled: Tensor
    first: int

    def each(self, work: Callable[..., Tensor], *others: Attention) -> Attention:
        """Apply `work` to each tensor and its counterparts in the others."""
        tensors = [(part.weights, part.confidence, part.real, part.filled) for part in (self, *others)]
        weights, confidence, real, filled = (work(*same) for same in zip(*tensors, strict=True))
        return Attention(weights, confidence, real, filled, self.first)

    def split(self, size: int) -> list[Attention]:
        """Return parts of `size` rows."""
        tensors = (self.weights, self.confidence, self.real, self.filled)
        weights, confidence, real, filled = (torch.split(tensor, size) for tensor in tensors)
        parts = zip(weights, confidence, real, filled, repeat(self.first), strict=False)
        return [Attention(*part) for part in parts]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The summary of a forward for every window column, small enough to keep.

    Attributes:
        top_ids: [B, W, K] int64, most likely first; ties go to the lower id.
        top_logits: [B, W, K] float32, their logits.
        lse: [B, W] float32, log-sum-exp over the vocabulary.
        logits: [B, W, V] float32, or the model's dtype if a kernel reads them; None: not kept.
        hidden: Hidden states in place of the logits; None: there are logits, or neither was kept.
        shadow: The prediction by columns that do not attend to the predicted one; None unless needs.shadow.
        attention: The attention of all columns; None unless needs.attention.
        fitting: The prediction among the tokens that fit a constraint, if this one is raw; None: use this.
    """

    top_ids: Tensor
    top_logits: Tensor
    lse: Tensor
    logits: Tensor | None = None
    hidden: HiddenStates | None = None
    shadow: Prediction | None = None
    attention: Attention | None = None
    fitting: Prediction | None = None

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
        return replace(self, logits=None, hidden=None, shadow=shadow, fitting=None)

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

    def split(self, size: int = 1) -> list[Prediction]:
        """Return the predictions of `size` rows at a time: far faster than taking them one by one."""
        members = [getattr(self, field.name) for field in fields(self)]
        parts = (repeat(None) if member is None else member.split(size) for member in members)
        return [Prediction(*part) for part in zip(*parts, strict=False)]

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
    """Everything that a sampler sees in one step.

    Attributes:
        now: This step's prediction, with its full logits, or with hidden states where the sampler needs only
            a few.
        past: Earlier predictions, newest first, at most needs.lookback.
        seen: [B] number of `past` predictions that belong to this row.
        drawn: [B, W] token that each position would commit now.
        masked: [B, W] bool, still masked.
        active: [B, W] bool, still masked and inside the current block.
        quota: [B] positions that the fixed schedule would commit now.
        rate: [B] share of the masks that the fixed schedule would commit now.
        step: [B] steps already taken in this block.
        progress: [B] share of the step budget used, this step included.
        carry: Decision.carry of the last step; None at the start of a history.
        noise: [B, W] uniform in (0, 1); None unless needs.noise.
        blockwise: True in the semi-autoregressive regime; False: the whole generation is one block.
        eos_ids: The tokens that end a text.
        tokens: [B, W] the tokens of the window; None unless needs.revoke.
        written: [B, W] bool, columns that may be revoked or rewritten; None unless needs.revoke.
    """

    now: Prediction
    past: tuple[Prediction, ...]
    seen: Tensor
    drawn: Tensor
    masked: Tensor
    active: Tensor
    quota: Tensor
    rate: Tensor
    step: Tensor
    progress: Tensor
    carry: Tensor | None
    noise: Tensor | None
    blockwise: bool
    eos_ids: tuple[int, ...] = ()
    tokens: Tensor | None = None
    written: Tensor | None = None

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
    """The answer of a sampler: which positions to commit.

    Attributes:
        commit: [B, W] bool, subset of obs.masked.
        eligible: [B, W] bool, positions that the rule accepted before the policy chose.
        forced: [B] bool, the fallback chose, not the rule.
        carry: [B, ...], comes back in the next Observation; None: nothing.
        tokens: [B, W] tokens to write; None: obs.drawn.
        signals: [B, W] each, by name; only traces and views read them.
        revoke: [B, W] bool, written columns to mask again, with Needs(revoke=True); None: none.
        rewrite: [B, W] bool, written columns that take `tokens`, with Needs(revoke=True); None: none.
        open: [B] bool, rows that go on with a block without masks, with Needs(revoke=True); None: none.
    """

    commit: Tensor
    eligible: Tensor
    forced: Tensor
    carry: Tensor | None = None
    tokens: Tensor | None = None
    signals: Mapping[str, Tensor] = field(default_factory=dict)
    revoke: Tensor | None = None
    rewrite: Tensor | None = None
    open: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to guess the next canvases, which run beside the real one.

    A sampler asks for it in Needs(speculation=...); `Speculative` does so around any sampler.

    Attributes:
        rows: Rows of a forward for each text: the real canvas and rows - 1 guesses.
        guess: The masks that a guess fills: "surest" (the most confident) or "first".
        partial: Commit only a part of a decision if that part was guessed (FreeDave++).
    """

    rows: int = 4
    guess: Literal["surest", "first"] = "surest"
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The inputs that the loop must prepare for a sampler.

    Attributes:
        top_k: Candidates kept per position, 1 to 1024.
        lookback: Earlier predictions kept, 0 to 64.
        logits: Keep full logits in them (KL).
        gather_logits: Logits of a few tokens, of this and of earlier predictions (exact JSD).
        span: The window is the whole generation, and the history is kept across blocks (KLASS, Prophet).
        noise: A fresh uniform number per position and step.
        min_length: Smallest number of generated columns.
        revoke: Allow to mask or rewrite tokens committed in the current block.
        speculation: Run guesses of the next canvases in the same forward; None: no guesses.
        shadow: Predict each window column once more, by one that does not attend to it.
        attention: The last layers whose attention is averaged; 0: none.
        carry: Numbers per column that it hands back in Decision.carry.
        whole_blocks: A text ends only when its block is complete, because its end may be edited away.
        extra_steps: Steps that a block may take beyond one per column.
        ends_last: It never writes an end token while a mask to its left stays, so no part of a decision may.
    """

    top_k: int = 2
    lookback: int = 0
    logits: bool = False
    gather_logits: bool = False
    span: bool = False
    noise: bool = False
    min_length: int = 1
    revoke: bool = False
    speculation: Speculation | None = None
    shadow: bool = False
    attention: int = 0
    carry: int = 0
    whole_blocks: bool = False
    extra_steps: int = 0
    ends_last: bool = False


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
    """Block-causal attention: a column sees its own block and the blocks before it.

    Attributes:
        length: Columns of a block.
        origin: Count from a row's first real token, or from column 0 of the canvas.
        offset: Where block 0 begins, counted from the origin.
        first_alone: The block before predicts the first column, which is decoded by itself.
    """

    length: int
    origin: Literal["row", "canvas"] = "row"
    offset: int = 0
    first_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts about a model that the loop and `generate` use.

    Attributes:
        vocab_size: Width of the logits.
        mask_id: The mask token.
        eos_ids: The tokens that end a text.
        pad_id: The token on the left of shorter prompts of a batch.
        max_length: Most columns of a canvas.
        new_tokens: Default length of a generation.
        block_length: The family's default; None: the full sequence.
        grid: The blocks that it attends by; None: every column sees every other.
        schedule: The family's fixed schedule: "linear" (LLaDA), "dream", "block" (SDAR, LLaDA2: the width of
            a block over its steps) or "remaining" (A2D: the masks left over the steps left).
        deterministic: Same tokens, same logits: an unchanged canvas needs no new forward.
        separable: A row's logits depend on that row alone: rows may be run without the others.
    """

    vocab_size: int
    mask_id: int
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    max_length: int = 4096
    new_tokens: int = 256
    block_length: int | None = None
    grid: BlockGrid | None = None
    schedule: ScheduleName = "linear"
    deterministic: bool = True
    separable: bool = False


class Cache(Protocol):
    """Keys and values kept between forwards; the model asks it which columns to run."""

    @property
    def persistent(self) -> bool:
        """Whether it keeps rows from block to block; else the first forward of a block stores all anew."""
        ...

    def start_block(self, block: slice) -> None:
        """Start to decode this block; the columns before it are finished."""
        ...

    def note_masks(self, window: slice, masked: Tensor) -> None:
        """Take note of the columns of the window that are masked, [B, W]; called before every forward."""
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
    """One reverse step, as traces, streams and counters see it.

    Attributes:
        index: Counted from 1 over the whole run; a leftover fill repeats the last index.
        block: Number of the block, from 0.
        window: The columns that the sampler saw.
        tokens: [B, N] after the commit.
        drawn: [B, W] token that each position would commit.
        decision: The sampler's answer.
        running: [B] bool, rows that took this step.
        fresh: [B] bool, rows whose canvas had changed since their last forward.
        forward: False: nothing had changed, so the last prediction was used again.
        leftover: True: the budget was spent, and the remaining masks took their argmax.
        revocable: Columns that a later step may mask or rewrite; None: none.
        guesses: [B] guesses of the next canvases that ran beside a fresh row; None: none.
    """

    index: int
    block: int
    window: slice
    tokens: Tensor
    drawn: Tensor
    decision: Decision
    running: Tensor
    fresh: Tensor
    forward: bool
    leftover: bool = False
    revocable: slice | None = None
    guesses: Tensor | None = None


Count = TypeVar("Count", int, Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts(Generic[Count]):
    """The cost of decoding: a number for one row, a tensor [B] for a batch.

    Attributes:
        steps: Reverse steps.
        forwards: Forward passes that the row needed; a step on an unchanged canvas needs none.
        rows: Rows of these forwards: its own, and guesses of the next canvases.
        accepted: Tokens committed by the rule.
        forced: Tokens committed by the fallback.
        forced_steps: Steps in which the fallback acted.
        empty_steps: Steps in which nothing was eligible.
        leftovers: Tokens filled in after the budget was spent.
        revoked: Tokens masked again or rewritten after their commit.
    """

    steps: Count
    forwards: Count
    rows: Count
    accepted: Count
    forced: Count
    forced_steps: Count
    empty_steps: Count
    leftovers: Count
    revoked: Count

    @property
    def forced_share(self) -> Any:
        """Share of steps in which the fallback acted, a float or [B]."""
        return self.forced_steps / (self.steps + (self.steps == 0))

    @property
    def empty_share(self) -> Any:
        """Share of steps in which nothing was eligible (the released code's fallback statistic)."""
        return self.empty_steps / (self.steps + (self.steps == 0))
