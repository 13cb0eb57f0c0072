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
MAX_TOP_K = 1024  # candidates that a sampler may keep per position


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states and the head: far smaller than the logits, and enough to recompute a few of them.

    Attributes:
        states: The hidden states, [B, W, D].
        weight: The head, [V, D].
    """

    states: Tensor
    weight: Tensor

    def logits_of(self, ids: Tensor) -> Tensor:
        """Return the logits of the given tokens [B, W, K], in float32."""
        rows = self.weight[ids]
        # not a matmul: when compiled, one kernel does this and never stores the gathered rows
        return _rounded((rows.float() * self.states[..., None, :].float()).sum(-1), rows.dtype)

    def each(self, work: Callable[..., Tensor], *others: HiddenStates) -> HiddenStates:
        """Apply `work` to these states and those of the others."""
        return replace(self, states=work(self.states, *(other.states for other in others)))

    def split(self, size: int) -> list[HiddenStates]:
        """Return parts of `size` rows."""
        return [HiddenStates(states, self.weight) for states in torch.split(self.states, size)]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round x to the dtype, as the head rounds its logits, and return it in float32."""
    narrow = x.to(dtype)
    # Inductor would drop the two casts; the bit view keeps the rounding
    return ((narrow.view(torch.int16) & -1).view(dtype) if narrow.itemsize == 2 else narrow).float()


@dataclass(frozen=True, slots=True)
class Attention:
    """How the columns of a canvas attend to each other, and how sure the model is of each.

    Attributes:
        weights: [B, N, N] float32, query by key, averaged over all heads and the last layers.
        confidence: [B, N] float32, probability of the most likely token.
        real: [B, N] bool, False on padding.
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
        logits: [B, W, V] float32, or the model's dtype if a kernel reads them. None means not kept.
        hidden: Hidden states, kept in place of the logits. None means that the logits or neither were kept.
        shadow: The prediction by shadow columns, which do not attend to the column that they predict. None
            unless needs.shadow.
        attention: The attention of all columns. None unless needs.attention.
        fitting: The prediction over only the tokens that fit a constraint, if this one covers all tokens.
            None means that this one is to be used.
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
        """Return this prediction where `rows` [B] is true, and `other` elsewhere."""

        def choose(ours: Tensor, theirs: Tensor) -> Tensor:
            return torch.where(rows.view(-1, *[1] * (ours.ndim - 1)), ours, theirs)

        return self.each(choose, other)

    def put(self, rows: Tensor, part: Prediction) -> Prediction:
        """Return this prediction with `part` in place of the rows with these numbers [n]."""
        return self.each(lambda ours, theirs: ours.index_copy(0, rows, theirs), part)

    def take(self, rows: Tensor | slice) -> Prediction:
        """Return the prediction of the rows with these numbers [n], in this order."""
        return self.each(lambda tensor: tensor[rows])

    def split(self, size: int = 1) -> list[Prediction]:
        """Split into predictions of `size` rows each. This is far faster than repeated `take`."""
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
        now: This step's prediction, with its full logits, or with hidden states if the sampler needs only a
            few logits.
        past: Earlier predictions, newest first, at most needs.lookback.
        seen: [B] earlier steps of the row in this history; it may exceed the length of `past`.
        drawn: [B, W] token that each position would commit now.
        masked: [B, W] bool, still masked.
        active: [B, W] bool, still masked and inside the current block.
        quota: [B] positions that the fixed schedule would commit now.
        rate: [B] share of the masks that the fixed schedule would commit now.
        step: [B] steps already taken in this block.
        progress: [B] share of the step budget used, this step included.
        carry: Decision.carry of the last step. None at the start of a history.
        noise: [B, W] uniform in (0, 1). None unless needs.noise.
        blockwise: True in the semi-autoregressive regime. False means that the whole generation is one block.
        eos_ids: The tokens that end a text.
        tokens: [B, W] the tokens of the window. None unless needs.revoke.
        written: [B, W] bool, columns that may be revoked or rewritten. None unless needs.revoke.
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
        """The prediction by shadow columns. Raises unless needs.shadow."""
        if self.now.shadow is None:
            raise ValueError("this prediction has no shadow columns; ask for them with Needs(shadow=True)")
        return self.now.shadow

    @property
    def attention(self) -> Attention:
        """The attention of all columns. Raises unless needs.attention."""
        if self.now.attention is None:
            raise ValueError("this prediction has no attention; ask for it with Needs(attention=LAYERS)")
        return self.now.attention


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of a sampler: which positions to commit.

    Attributes:
        commit: [B, W] bool, subset of obs.masked.
        eligible: [B, W] bool, positions that the rule accepted before the policy chose.
        forced: [B] bool, rows where the fallback chose instead of the rule.
        carry: [B, ...], returned in the next Observation. None means nothing.
        tokens: [B, W] tokens to write. None means obs.drawn.
        signals: [B, W] each, by name; only traces and views read them.
        revoke: [B, W] bool, written columns to mask again, with Needs(revoke=True). None means none.
        rewrite: [B, W] bool, written columns to overwrite with `tokens`, with Needs(revoke=True). None means
            none.
        open: [B] bool, rows that continue a block without masks, with Needs(revoke=True). None means none.
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
    """How to guess the next canvases, which run in the same forward as the real one.

    A sampler asks for it with Needs(speculation=...). `Speculative` adds it to any sampler.

    Attributes:
        rows: Rows per text in a forward: the real canvas and rows - 1 guesses.
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
        logits: Keep full logits in earlier predictions (for KL).
        gather_logits: Read the logits of a few tokens in this and earlier predictions (for the exact JSD).
        span: The window is the whole generation, and the history is kept across blocks (KLASS, Prophet).
        noise: Draw a fresh uniform number per position and step.
        min_length: Fewest columns that a generation may have.
        revoke: Allow to mask or rewrite tokens committed in the current block.
        speculation: Run guesses of the next canvases in the same forward. None means no guesses.
        shadow: Predict each window column once more, by a column that does not attend to it.
        attention: Number of last layers whose attention is averaged. 0 means none.
        carry: Numbers per column in Decision.carry.
        whole_blocks: A text ends only when its block is complete, because its end may be edited away.
        extra_steps: Steps that a block may take beyond one per column.
        ends_last: The sampler never writes an end token while a mask to its left remains. A part of its
            decision must not do so either.
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
    """A rule that decides which positions to commit. It has no state; its memory is in the Observation."""

    @property
    def needs(self) -> Needs:
        """The inputs that the loop must prepare; constant during a run."""
        ...

    def decide(self, obs: Observation) -> Decision:
        """Return the positions to commit now. Called once per step, or twice if blocks overlap."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGrid:
    """Block-causal attention: a column sees its own block and the blocks before it.

    Attributes:
        length: Columns per block.
        origin: Count from a row's first real token, or from column 0 of the canvas.
        offset: Where block 0 begins, counted from the origin.
        first_alone: The block before predicts a block's first column, which is decoded by itself.
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
        pad_id: The token that pads the shorter prompts of a batch on the left.
        max_length: Most columns that a canvas may have.
        new_tokens: Default length of a generation.
        block_length: The family's default block length. None means the full sequence.
        grid: The blocks of block-causal attention. None means that every column sees every other.
        schedule: The family's fixed schedule: "linear" (LLaDA), "dream", "block" (SDAR, LLaDA2: the width of
            a block divided by its steps) or "remaining" (A2D: the masks left divided by the steps left).
        deterministic: The same tokens give the same logits, so an unchanged canvas needs no new forward.
        separable: A row's logits depend on that row alone, so rows may run without the others.
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
        """Whether it keeps rows from block to block. If not, the first forward of a block stores all."""
        ...

    def start_block(self, block: slice) -> None:
        """Start to decode this block; the columns before it are finished."""
        ...

    def note_masks(self, window: slice, masked: Tensor) -> None:
        """Note which columns of the window are masked, [B, W]. Called before every forward."""
        ...

    def columns(self, need: slice, n: int) -> slice:
        """Return which of `n` columns to run to predict those in `need`. Change nothing."""
        ...

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the columns that ran. Return those of all, [B, H, N, D] each."""
        ...

    def ran(self, columns: slice) -> None:
        """Record a complete forward of these columns."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keep only the stored rows with these numbers [n], in this order.

        Called between start_block and a forward.
        """
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
        """The weight of the head, [V, D], or None if the head is not a plain matrix."""
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
        """Return two predictions of the window: the usual one, and one by shadow columns.

        A shadow column does not attend to the column that it predicts. Both predictions are hidden states
        [B, W, D] if the model has a head, else logits [B, W, V].
        """
        ...


@runtime_checkable
class AttentionLM(Protocol):
    """A model that returns its attention, for Needs(attention=LAYERS)."""

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
        forward: False if nothing had changed and the last prediction was used again.
        leftover: True if the budget was spent and the remaining masks were filled with their argmax.
        revocable: Columns that a later step may mask or rewrite. None means none.
        guesses: [B] guesses of the next canvases that ran beside a fresh row. None means none.
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
    """The cost of decoding. Each count is a number for one row, or a tensor [B] for a batch.

    Attributes:
        steps: Reverse steps.
        forwards: Forward passes that the row needed; a step on an unchanged canvas needs none.
        rows: Rows of these forwards, guesses of the next canvases included.
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
