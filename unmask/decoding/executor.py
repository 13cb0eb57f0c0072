"""The interface between the loop and the hardware: look, predict, decide. This executor is plain torch.

`unmask.compile` gives a model another executor with the same three methods (unmask/fast/executor.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeGuard

import torch
from torch import Tensor

from unmask.decoding.bans import Bans
from unmask.decoding.canvas import Canvas, ended, is_any
from unmask.decoding.checks import check_no_cache, check_written, checked_logits
from unmask.decoding.draw import NoiseSource, RowNoise
from unmask.decoding.observe import Context, Outcome, Scene, decide, fill
from unmask.decoding.options import Options
from unmask.decoding.plan import Block
from unmask.decoding.rows import History, Rows, Written
from unmask.decoding.speculation import SharedCache, Speculator, beside
from unmask.decoding.summary import summarize
from unmask.decoding.transfer import read_together
from unmask.decoding.turns import Todo, Turn
from unmask.types import (
    Attention,
    AttentionLM,
    Cache,
    HeadedLM,
    HiddenStates,
    MaskedLM,
    Prediction,
    Sampler,
    ShadowLM,
)

MAX_LOGITS = 1 << 28  # logits computed at a time if full logits need not be kept


@dataclass(slots=True)
class Executor:
    """Run a model and a sampler on the rows of a batch."""

    model: MaskedLM
    sampler: Sampler
    options: Options
    bans: Bans
    blockwise: bool = False
    cache: Cache | None = None
    noise: NoiseSource = field(default_factory=lambda: RowNoise([0]))
    sizes: int = 8  # sizes that a batch may shrink through as rows finish
    context: Context = field(init=False)
    draws: bool = field(init=False)  # tokens are sampled instead of the argmax
    head: Tensor | None = field(init=False)  # [V, D], if hidden states are kept in place of logits
    speculator: Speculator | None = field(init=False)
    launched: Prediction | None = None  # the prediction that `look` started for the next `predict`
    block: Block | None = None
    cached_rows: Tensor | None = None  # numbers of the rows that the cache holds; None means all

    def __post_init__(self) -> None:
        check_no_cache(self.cache, self.sampler)
        info = self.model.info
        schedule = self.options.schedule or info.schedule
        self.draws = not self.options.selection.greedy
        self.context = Context(schedule, self.options.selection, self.blockwise, info.eos_ids)
        head = head_of(self.model)
        few = head is not None and needs_few_logits(head, self.sampler, self.options, self.bans)
        self.head = head if few else None
        speculation = self.sampler.needs.speculation
        if speculation is not None:
            last_ids = info.eos_ids if self.sampler.needs.ends_last else ()
            self.speculator = Speculator(speculation, info.mask_id, last_ids)
        else:
            self.speculator = None

    def look(self, rows: Rows, window: slice, block: Block) -> Todo:
        """Return what is left to decode. This is the one place where the host waits for the device.

        On a GPU, a forward that will certainly be needed starts here. It runs while the caller handles the
        last step.
        """
        self.launched = None
        if self.speculator is not None:
            self.speculator.recall(rows)
        return self.prepare(rows, window, block, remaining(rows, window, block))

    def prepare(self, rows: Rows, window: slice, block: Block, todo: Todo) -> Todo:
        """Prepare the next forward: start a new block in the cache, and on a GPU start the forward early."""
        if block is not self.block:
            self.block = block
            if self.speculator is not None:
                self.speculator.forget()
            if self.cache is not None:
                self.cache.start_block(block.columns)
                wanted, count = todo.running, todo.num_running
                if self.cache.persistent:  # a row that idles in this block may continue in the next
                    wanted = rows.unfinished(block)
                    count = int(wanted.sum())
                if self.model.info.separable:
                    self.keep_rows(self.pick(wanted, count), len(wanted))
        if todo.num_fresh and rows.canvas.tokens.is_cuda:
            self.launched = self.forward(rows, window, todo)
        return todo

    def keep_rows(self, picked: Tensor | None, count: int) -> None:
        """Keep only the rows `picked` of `count` rows in the cache. None means all."""
        assert self.cache is not None
        before, self.cached_rows = self.cached_rows, picked
        if picked is None:
            return
        if before is not None:  # translate to numbers among the rows that the cache holds
            places = torch.arange(len(before), device=before.device)
            number = torch.zeros(count, dtype=torch.long, device=before.device)
            picked = number.index_copy(0, before, places)[picked]
        self.cache.keep(picked)

    def predict(self, rows: Rows, turn: Turn) -> Prediction:
        """Return the prediction of every running row, after one forward of those that changed."""
        if turn.todo.num_fresh:
            rows.prediction = self.launched or self.forward(rows, turn.window, turn.todo)
            self.launched = None
        assert rows.prediction is not None, "the first turn of a run has fresh rows"
        return rows.prediction

    def decide(
        self, turn: Turn, prediction: Prediction, history: History, written: Written | None
    ) -> Outcome:
        """Return the positions to commit."""
        outcome = self.ask(turn, prediction, history, written)
        if self.speculator is None or turn.leftover:
            return outcome
        return self.speculator.shorten(outcome, turn.window)

    def ask(self, turn: Turn, prediction: Prediction, history: History, written: Written | None) -> Outcome:
        """Ask the sampler which positions to commit; a leftover fill commits all of them."""
        scene = self.scene(turn, written)
        if turn.leftover:
            return fill(prediction, scene)
        return decide(self.sampler, prediction, history, scene, self.context)

    def scene(self, turn: Turn, written: Written | None) -> Scene:
        """Return the state of the rows in a turn, with their random numbers."""
        todo, width = turn.todo, turn.window.stop - turn.window.start
        draws = noise = None
        if not turn.leftover:
            if self.draws:
                draws = self.noise(todo.running, width)
            if self.sampler.needs.noise:
                noise = self.noise(todo.running, width)
        tokens, revocable = written or (None, None)
        scene = Scene(todo.masked, todo.active, todo.running, turn.started, turn.clock)
        return scene._replace(draws=draws, noise=noise, tokens=tokens, written=revocable, urgent=todo.urgent)

    def forward(self, rows: Rows, window: slice, todo: Todo) -> Prediction:
        """Run the model on the rows that need it, and keep the last prediction of the others."""
        picked = None
        if self.model.info.separable:
            picked = self.cached_rows if self.cache is not None else self.pick(todo.fresh, todo.num_fresh)
        if self.cache is not None:
            self.cache.note_masks(window, todo.active)
        guesses = None if self.speculator is None else self.speculator.guess(rows, window, todo)
        if picked is None or (todo.num_fresh == todo.num_running and rows.resting is None):
            rows.prediction = None  # free the last logits before the next ones are computed
        canvas, bans = rows.canvas, rows.bans or self.bans
        if picked is not None:
            canvas, bans = canvas.take(picked), bans.take(picked)
        if guesses is None or self.speculator is None:
            rows.guesses = None
            part = self.run(canvas, window, bans, self.cache)
        else:
            own = guesses if picked is None else guesses[picked]
            part, *guessed = self.run_guesses(canvas, own, window, bans)
            rows.guesses = self.speculator.useful(todo.active).clamp(0, len(guessed))
            parts = [spread(each, picked, todo) for each in guessed]
            self.speculator.keep(guesses, parts, todo.fresh, rows.guesses)
        if picked is not None and rows.prediction is not None:
            return rows.prediction.put(picked, part)
        return spread(part, picked, todo)

    def run_guesses(self, canvas: Canvas, guesses: Tensor, window: slice, bans: Bans) -> list[Prediction]:
        """Run rows and their guesses [B, R, N] in one forward; return R + 1 predictions of B rows."""
        copies = 1 + guesses.shape[1]
        cache = None if self.cache is None else SharedCache(self.cache, copies)
        prediction = self.run(beside(canvas, guesses), window, bans.repeat(copies), cache)
        return [prediction.take(slice(number, None, copies)) for number in range(copies)]

    def run(self, canvas: Canvas, window: slice, bans: Bans, cache: Cache | None) -> Prediction:
        """Run the model once and summarize all that the sampler needs. `bans` are those of the rows."""
        needs = self.sampler.needs
        if not needs.shadow and not needs.attention:
            return self.read(run_model(self.model, canvas, window, cache), bans.on(canvas, window))
        try:
            look_closer = self.run_with_shadow if needs.shadow else self.run_with_attention
            return look_closer(canvas, window, bans)
        except IndexError:  # nn.Embedding raises it for a token outside the vocabulary
            check_written(canvas.tokens, self.model.info)
            raise

    def run_with_shadow(self, canvas: Canvas, window: slice, bans: Bans) -> Prediction:
        """Run the canvas and the shadow columns of the window."""
        assert isinstance(self.model, ShadowLM), "check_run lets no other model pass"
        outputs = self.model.shadow_states(canvas.tokens, canvas.real, window)
        on_window = bans.on(canvas, window)
        now, shadow = (self.read(output, on_window) for output in outputs)
        return replace(now, shadow=shadow)

    def run_with_attention(self, canvas: Canvas, window: slice, bans: Bans) -> Prediction:
        """Run the canvas and keep the attention of the last layers."""
        assert isinstance(self.model, AttentionLM), "check_run lets no other model pass"
        tokens, layers = canvas.tokens, self.sampler.needs.attention
        output, weights = self.model.attention_states(tokens, canvas.attend, layers)
        # the logits of all columns at once may need too much memory
        size, n = max(1, MAX_LOGITS // (self.model.info.vocab_size * len(tokens))), tokens.shape[1]
        parts = [slice(first, min(first + size, n)) for first in range(0, n, size)]
        confidence = [self.read(output[:, part], bans.within(part)).top_probs[..., 0] for part in parts]
        real = torch.ones_like(tokens, dtype=torch.bool) if canvas.real is None else canvas.real
        filled = real & (tokens != canvas.mask_id)
        attention = Attention(weights, torch.cat(confidence, dim=1), real, filled, window.start)
        return replace(self.read(output[:, window], bans.on(canvas, window)), attention=attention)

    def pick(self, wanted: Tensor, count: int) -> Tensor | None:
        """Return the numbers of the wanted rows, and of others to reach a usual size, or None for all."""
        if count == len(wanted):
            return None
        unit = -(-len(wanted) // self.sizes)
        size = -(-count // unit) * unit
        if size >= len(wanted):
            return None
        # sort instead of search, so that the host need not wait to learn which rows they are
        return torch.argsort(wanted.int(), descending=True, stable=True)[:size]

    def read(self, output: Tensor, bans: Bans) -> Prediction:
        """Summarize the output of a forward. `bans` are those of its rows and columns."""
        top_k = self.sampler.needs.top_k
        if bans.raw and bans.allowed is not None:
            logits = self.logits(output, replace(bans, allowed=None))
            fitting = summarize(bans.allowed.apply(logits.clone()), top_k)
            return replace(summarize(logits, top_k), fitting=fitting)
        if self.head is None:
            return summarize(self.logits(output, bans), top_k)
        size = max(1, MAX_LOGITS // (self.model.info.vocab_size * output.shape[1]))
        parts = []
        for rows in (slice(first, first + size) for first in range(0, len(output), size)):
            logits = self.logits(output[rows], bans.take(rows))
            parts.append(summarize(logits, top_k).without_logits())
        return replace(Prediction.join(parts), hidden=HiddenStates(output, self.head))

    def logits(self, output: Tensor, bans: Bans) -> Tensor:
        """Return the logits [B, W, V] of a forward's output, with banned tokens at -inf."""
        return bans.apply(self.model.logits(output) if has_head(self.model) else output)


def spread(part: Prediction, picked: Tensor | None, todo: Todo) -> Prediction:
    """Expand a prediction of the picked rows [n] to all rows. The values of the other rows do not matter."""
    if picked is None:
        return part
    place = torch.zeros_like(todo.running, dtype=torch.long)
    return part.take(place.index_copy(0, picked, torch.arange(len(picked), device=picked.device)))


MakeExecutor: TypeAlias = Callable[..., Executor]


def executor_for(model: MaskedLM) -> MakeExecutor:
    """Return the model's own executor class if it has one, else the plain one."""
    own: MakeExecutor | None = getattr(model, "executor", None)
    return own or Executor


def has_head(model: MaskedLM) -> TypeGuard[HeadedLM]:
    """Whether a model offers hidden states and the head that turns them into logits."""
    # ask the type: a wrapper that forwards attributes may change the logits
    return hasattr(type(model), "head_weight") and getattr(model, "head_weight", None) is not None


def head_of(model: MaskedLM) -> Tensor | None:
    """Return the head [V, D] of a model that offers it."""
    return model.head_weight if has_head(model) else None


def needs_few_logits(head: Tensor, sampler: Sampler, options: Options, bans: Bans) -> bool:
    """Whether the logits that the sampler needs can be computed again from hidden states."""
    needs, (vocabulary, size) = sampler.needs, head.shape
    few = needs.gather_logits and not needs.logits and needs.top_k * size < vocabulary
    # logits computed again from the head would lack the bans of a language
    return few and options.selection.greedy and bans.language is None


def run_model(model: MaskedLM, canvas: Canvas, window: slice, cache: Cache | None) -> Tensor:
    """Return the hidden states [B, W, D] of a model with a head, or the logits [B, W, V] of another."""
    try:
        if has_head(model):
            return model.hidden_states(canvas.tokens, canvas.attend, window, cache)
        logits = model(canvas.tokens, canvas.attend, window, cache)
    except IndexError:  # nn.Embedding raises it for a token outside the vocabulary
        check_written(canvas.tokens, model.info)
        raise
    return checked_logits(logits, len(canvas.tokens), window.stop - window.start, model.info)


def remaining(rows: Rows, window: slice, block: Block) -> Todo:
    """Return what is left to decode, and raise if the last logits were not finite. Reads the device once.

    A row is done once it has an end token without a mask to its left. If predictions may be reused, a row
    that the last step did not change needs no new forward.
    """
    canvas, generated, eos_ids = rows.canvas, rows.ending_in(block), rows.eos_ids
    if eos_ids and generated.is_cpu and not is_any(generated, eos_ids).any():
        eos_ids = ()  # no text can have ended; on a GPU this check would have to wait
    masked, active, running, fresh = left_to_do(
        canvas.tokens[:, window],
        generated,
        inside(rows, window, block),
        rows.idle,
        rows.open,
        rows.changed if rows.reuse else None,
        mask_id=canvas.mask_id,
        eos_ids=eos_ids,
    )
    broken = torch.zeros_like(running) if rows.broken is None else rows.broken
    flags = read_together(running, fresh, broken)
    if any(flags[2]):
        raise broken_logits([row for row, flag in enumerate(flags[2]) if flag], rows.steps)
    urgent = None if rows.open_blocks is None else rows.open_blocks.urgent(masked)
    return Todo(masked, active, running, fresh, sum(flags[0]), sum(flags[1]), urgent)


def left_to_do(
    tokens: Tensor,
    generated: Tensor,
    inside: Tensor | None,
    stopped: Tensor | None,
    open: Tensor | None,
    changed: Tensor | None,
    *,
    mask_id: int,
    eos_ids: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tensors of a Todo.

    `tokens` [B, W] are those of the window, `generated` [B, L] those of the generation. `inside` [1 or B, W]
    marks the window's columns that belong to the block. It is None if all of them do.
    """
    masked = tokens == mask_id
    if eos_ids:
        masked = masked & ~ended(generated, mask_id, eos_ids).any(-1, keepdim=True)
    if stopped is not None:
        masked = masked & ~stopped[:, None]
    active = masked if inside is None else masked & inside
    running = active.any(-1)
    if open is not None:
        running = running | (open if stopped is None else open & ~stopped)
    return masked, active, running, running if changed is None else running & changed


def inside(rows: Rows, window: slice, block: Block) -> Tensor | None:
    """Return the window's columns in the block or in an open one, [1 or B, W] bool, or None for all."""
    if rows.open_blocks is not None:
        return rows.open_blocks.inside(rows.canvas.masked(window))
    if window == block.columns:
        return None
    column = torch.arange(window.start, window.stop, device=rows.canvas.tokens.device)[None]
    inside: Tensor = (column >= block.columns.start) & (column < block.columns.stop)
    return inside


def broken_logits(rows: list[int], step: int) -> ValueError:
    """Return the error for rows whose logits are not finite."""
    return ValueError(
        f"the model returned NaN or infinite logits at step {step}, row {', '.join(map(str, rows))}; "
        "check its weights and dtype"
    )
