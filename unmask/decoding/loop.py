"""The one denoising loop: takes the turns of a course. Knows nothing of text or of any sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.checks import check_needs, check_written, checked_logits, is_model, is_sampler
from unmask.decoding.draw import NoiseSource, RowNoise, Selection
from unmask.decoding.fuse import fused
from unmask.decoding.observe import Outcome, decide_and_settle, fill, settle
from unmask.decoding.plan import Plan
from unmask.decoding.rows import Memory, predict
from unmask.decoding.turns import Course, Taken, Turn, ask, course, pack
from unmask.errors import flag, id_tuple, one_of, token_ids, whole
from unmask.types import (
    Cache,
    Decision,
    HeadedLM,
    MaskedLM,
    ModelInfo,
    Needs,
    Origin,
    Prediction,
    Sampler,
    ScheduleName,
    Step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run may vary besides its sampler."""

    selection: Selection = field(default_factory=Selection)
    schedule: ScheduleName | None = None  # None: the model family's own
    banned_ids: tuple[int, ...] | None = None  # tokens never written; None: the mask token
    min_new_tokens: int = 0  # no end token before this many generated columns
    stop_at_eos: bool = True  # a row is done when no mask is left of its first end token
    fill_leftovers: bool = True  # masks that outlive the budget get the argmax of one more forward
    reuse: bool = True  # an unchanged canvas needs no new forward

    def __post_init__(self) -> None:
        whole("min_new_tokens", self.min_new_tokens, 0)
        for name in ("stop_at_eos", "fill_leftovers", "reuse"):
            flag(name, getattr(self, name))
        if self.banned_ids is not None:
            object.__setattr__(self, "banned_ids", id_tuple("banned_ids", self.banned_ids))
        if self.schedule is not None:
            one_of("schedule", self.schedule, get_args(ScheduleName))

    def banned(self, info: ModelInfo) -> tuple[int, ...]:
        """Tokens that are never written."""
        return (info.mask_id,) if self.banned_ids is None else self.banned_ids

    def early(self, canvas: Canvas, window: slice) -> int:
        """How many of the first window columns may hold no end token."""
        first: int = window.start
        return max(0, canvas.start + self.min_new_tokens - first)

    def course(
        self,
        info: ModelInfo,
        canvas: Canvas,
        needs: Needs,
        plan: Plan,
        done: Callable[[Tensor], Tensor] | None = None,
        *,
        compiled: bool = False,
    ) -> Course:
        """The way of a canvas through its plan under these options."""
        return course(
            canvas,
            plan,
            schedule=self.schedule or info.schedule,
            span=needs.span,
            eos_ids=info.eos_ids if self.stop_at_eos else (),
            reuse=self.reuse and info.deterministic,
            fill_leftovers=self.fill_leftovers,
            done=done,
            compiled=compiled,
        )


DEFAULTS = Options()
MOST_LOGITS = 1 << 28  # at once, where they need not be kept
SIZES = 8  # that a batch can have as it loses rows
COMPILED_SIZES = 2  # every size is a shape that must be compiled and recorded


def denoise(
    model: MaskedLM,
    canvas: Canvas,
    sampler: Sampler,
    plan: Plan,
    options: Options = DEFAULTS,
    *,
    cache: Cache | None = None,
    noise: NoiseSource | None = None,
    done: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Step]:
    """Yield one Step per reverse step until no row has anything left to commit.

    `done` may end rows earlier, for good: given the tokens [B, N], it says which need no more, [B] bool.
    """
    is_model(model)
    is_sampler(sampler)
    check_needs(sampler)
    check(model.info, canvas, plan, options)
    run = _Run(model, sampler, plan, options, cache, noise or RowNoise([0] * len(canvas.tokens)))
    compiled = model.info.compiled
    turns = options.course(model.info, canvas, sampler.needs, plan, done, compiled=compiled)
    turn = next(turns, None)
    while turn is not None:
        try:
            step, taken = run.take(turn)
        except IndexError:  # what an embedding says to a token that it does not have
            check_written(turn.canvas.tokens, model.info)
            raise
        turn = _following(turns, taken)  # raises on broken logits, so before the step is shown
        if turn is not None and turn.canvas.tokens.is_cuda:
            run.predict(turn)  # the device works on it while the caller looks at the step
        yield step


def _following(turns: Course, taken: Taken) -> Turn | None:
    """The turn after what was taken; None: the run is over."""
    try:
        return turns.send(taken)
    except StopIteration:
        return None


@dataclass(slots=True)
class _Run:
    """One call of `denoise`: its settings, and what its rows remember."""

    model: MaskedLM
    sampler: Sampler
    plan: Plan
    options: Options
    cache: Cache | None
    noise: NoiseSource
    # looked up once, as the device would wait
    split: tuple[HeadedLM, Tensor] | None = field(init=False)  # the model and its head, where it has one
    headed: tuple[HeadedLM, Tensor] | None = field(init=False)  # the same, where the head may come later
    block: int = -1  # the number of the last turn's
    now: Prediction | None = None
    seen: Turn | None = None  # the last turn that `now` was asked for
    ahead: tuple[Canvas, Tensor] | None = None  # what the model says of a canvas, asked for ahead of its turn
    began: Tensor | None = None  # rows [n] that run in this block, where they are fewer than all
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.split = split(self.model)
        self.headed = headed(self.split, self.sampler, self.options)

    @torch.no_grad()
    def take(self, turn: Turn) -> tuple[Step, Taken]:
        """Take a turn: the step that came of it, and what the course must know."""
        view, now = turn.view, self.predict(turn)
        if turn.leftover:
            decision, written = fill(now, view)
            outcome = settle(decision.commit, now.lse, view.running)
        else:
            decision, written, outcome = self.decide(now, turn)
        canvas = turn.canvas.commit(turn.window, decision.commit, written)
        step = Step(
            turn.index,
            turn.number,
            turn.window,
            canvas.tokens,
            written,
            decision,
            view.running,
            view.fresh,
            view.forward,
            leftover=turn.leftover,
        )
        return step, Taken(canvas, *outcome, self.head_start(turn, canvas))

    @property
    def compiled(self) -> bool:
        """Whether decisions are compiled: never where they draw, as the random streams are the host's."""
        drawn = self.sampler.needs.noise or not self.options.selection.greedy
        return self.model.info.compiled and not drawn

    def enter(self, turn: Turn) -> None:
        """A new block starts a new history, unless the sampler's spans all blocks."""
        if turn.number == self.block:
            return
        self.block = turn.number
        if self.cache is not None:
            self.cache.start_block(turn.block.columns)
            self.began = self.few(turn.view.running, turn.view.runs)
        if not self.sampler.needs.span:
            self.memory = Memory()

    @torch.no_grad()
    def predict(self, turn: Turn) -> Prediction:
        """The last prediction, or a new one after a forward pass; asked again, the same."""
        if self.now is not None and turn is self.seen:
            return self.now
        self.enter(turn)
        if turn.view.forward or self.now is None:
            self.now = self.renewed(turn)
        self.seen = turn
        return self.now

    def head_start(self, turn: Turn, canvas: Canvas) -> Callable[[], Callable[[], None]] | None:
        """Makes the forward of this block that follows the turn ready, if it is likely to be of all rows."""
        likely = turn.view.everyone and turn.view.changed == turn.view.runs
        if not self.model.info.compiled or not likely or turn.leftover:
            return None

        @torch.no_grad()
        def prepare() -> Callable[[], None]:
            return partial(go_on, self.ready(canvas, turn.window))

        @torch.no_grad()
        def go_on(say: Callable[[], Tensor]) -> None:
            self.now = None  # the last logits go before the next ones come
            self.ahead = canvas, say()

        return prepare

    def ready(self, canvas: Canvas, window: slice) -> Callable[[], Tensor]:
        """`say`, to be called if it is wanted; what can be done before is done now, as there is time."""
        steady = self.cache is None or getattr(self.cache, "steady", False)
        model = None if self.split is None else self.split[0]
        if model is None or not steady or not hasattr(model, "ready"):
            return partial(self.say, canvas, window)
        try:
            look: Callable[[], Tensor] = model.ready(canvas.tokens, canvas.attend, window, self.cache)
        except ValueError:  # of a run that lost its keys and values; nobody has asked for the forward yet
            return partial(self.say, canvas, window)
        logits = model.logits
        return look if self.headed is not None else lambda: logits(look())

    def say(self, canvas: Canvas, window: slice) -> Tensor:
        """What the model says of the window: hidden states, if its head comes later, or logits."""
        model = self.model if self.headed is None else self.headed[0].look
        said: Tensor = model(canvas.tokens, canvas.attend, window, self.cache)
        return said

    def renewed(self, turn: Turn) -> Prediction:
        """The prediction after a forward of the rows that need one."""
        rows = self.rows(turn)
        if rows is None or turn.view.changed == turn.view.runs:
            self.now = None  # the last logits go before the next ones come
        if rows is None:
            return self.forward(turn.canvas, turn.window)
        part = self.forward(turn.canvas.take(rows), turn.window)
        if self.now is not None:
            return self.now.put(rows, part)
        place = torch.zeros_like(turn.started)  # rows that do not run may have any prediction
        return part.take(place.index_copy(0, rows, torch.arange(len(rows), device=rows.device)))

    def rows(self, turn: Turn) -> Tensor | None:
        """The rows [n] to run, where they are fewer than all; None: all."""
        if not self.model.info.separable:
            return None
        if self.cache is not None:  # it holds the rows that began the block
            return self.began
        return self.few(turn.view.fresh, turn.view.changed)

    def few(self, wanted: Tensor, count: int) -> Tensor | None:
        """The wanted rows [B] bool as numbers, and some others up to a usual size; None: all."""
        unit = -(-len(wanted) // (COMPILED_SIZES if self.model.info.compiled else SIZES))
        size = -(-count // unit) * unit
        if size >= len(wanted):
            return None
        # sorted, not sought: the host need not wait to learn which they are
        return torch.argsort(wanted.int(), descending=True, stable=True)[:size]

    def forward(self, canvas: Canvas, window: slice) -> Prediction:
        """One forward pass, without the tokens that may not be written."""
        info, ahead = self.model.info, self.ahead
        said = ahead[1] if ahead is not None and ahead[0] is canvas else self.say(canvas, window)
        self.ahead = None
        sum_up = partial(
            predict,
            top_k=self.sampler.needs.top_k,
            banned=self.options.banned(info),
            early=self.options.early(canvas, window),
            eos_ids=info.eos_ids,
        )
        width = window.stop - window.start
        if self.headed is None:
            return sum_up(checked_logits(said, len(canvas.tokens), width, info))
        model, weight = self.headed
        rows = max(1, MOST_LOGITS // (info.vocab_size * said.shape[1]))
        parts = [
            sum_up(checked_logits(model.logits(part), len(part), width, info)).without_logits()
            for part in torch.split(said, rows)
        ]
        return replace(Prediction.join(parts), origin=Origin(said, weight))

    def decide(self, now: Prediction, turn: Turn) -> tuple[Decision, Tensor, Outcome]:
        """What the sampler decides, what it writes, and what comes of it."""
        info, view = self.model.info, turn.view
        decision, written, outcome = fused(decide_and_settle, when=self.compiled)(
            self.sampler,
            now,
            self.memory,
            view,
            turn.started,
            turn.hand,
            schedule=self.options.schedule or info.schedule,
            selection=self.options.selection,
            noise=self.noise,
            blockwise=self.plan.blockwise,
            eos_ids=info.eos_ids,
        )
        running = None if view.everyone else view.running
        self.memory = self.memory.push(now, decision.carry, self.sampler.needs, running)
        return decision, written, outcome


def split(model: MaskedLM) -> tuple[HeadedLM, Tensor] | None:
    """The model and its head, if its logits are the product of hidden states and that."""
    # asked of the type: a wrapper that hands attributes on has logits of its own
    if not hasattr(type(model), "head_weight") or not isinstance(model, HeadedLM):
        return None
    weight = model.head_weight
    return None if weight is None else (model, weight)


def headed(
    parts: tuple[HeadedLM, Tensor] | None, sampler: Sampler, options: Options
) -> tuple[HeadedLM, Tensor] | None:
    """The same parts, if logits need not be kept nor be there all at once: the sampler asks for few of them,
    and to make those again takes less than to keep all."""
    needs = sampler.needs
    if parts is None or not needs.recall or needs.logits or not options.selection.greedy:
        return None
    vocabulary, size = parts[1].shape
    return None if needs.top_k * size >= vocabulary else parts


def check(info: ModelInfo, canvas: Canvas, plan: Plan, options: Options) -> None:
    """Refuse what cannot work before the first forward."""
    generation, length = plan.columns, canvas.tokens.shape[1]
    banned = options.banned(info)
    if info.vocab_size < 2:
        raise ValueError(f"vocab_size must be >= 2, got {info.vocab_size}")
    if canvas.mask_id != info.mask_id:
        raise ValueError(f"the canvas uses mask id {canvas.mask_id}, the model {info.mask_id}")
    if options.min_new_tokens > length - canvas.start:
        raise ValueError(
            f"min_new_tokens must be at most the {length - canvas.start} tokens of the generation, "
            f"got {options.min_new_tokens}"
        )
    token_ids("eos_ids", info.eos_ids, info.vocab_size)
    token_ids("banned_ids", banned, info.vocab_size)
    if len(set(banned)) == info.vocab_size:
        raise ValueError("banned_ids rules out every token; leave at least one")
    behind = canvas.masked(slice(generation.stop, length))
    foreign = (canvas.tokens < 0) | (canvas.tokens >= info.vocab_size)
    unplanned, unknown = ask(pack(behind.any(-1), foreign.any(-1)), 2)()
    if generation.start < canvas.start or generation.stop > length or unplanned:
        raise ValueError(
            f"the plan covers columns {generation.start} to {generation.stop}, but the canvas generates "
            f"in columns {canvas.start} to {length}; every mask must be inside the plan"
        )
    if unknown:
        token_ids("the canvas", canvas.tokens.flatten().tolist(), info.vocab_size)
