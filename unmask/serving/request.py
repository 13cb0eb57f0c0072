"""A request: first checked and encoded, then a row that is being decoded."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unmask.decoding.append_cache import AppendCache
from unmask.decoding.bans import Bans
from unmask.decoding.cache import BlockCache
from unmask.decoding.checks import check_run, extra_needs
from unmask.decoding.draw import RowNoise
from unmask.decoding.executor import remaining
from unmask.decoding.memory import state_bytes
from unmask.decoding.observe import Outcome
from unmask.decoding.options import Options
from unmask.decoding.result import Counter, Result
from unmask.decoding.rows import Rows
from unmask.decoding.turns import Turn, turns
from unmask.errors import FieldError
from unmask.fast.graphs import runner_of
from unmask.serving.limits import Limits
from unmask.text.config import GenerationConfig
from unmask.text.gaps import read_gaps
from unmask.text.generate import Generation, Prepared, Run, prepare
from unmask.text.infill import Infilling, PreparedInfill, prepare_infill
from unmask.text.prompts import Prompt, TextModel, encode_text
from unmask.types import MaskedLM, ModelInfo, Prediction, Sampler, Step

if TYPE_CHECKING:
    from unmask.serving.job import Job
    from unmask.serving.look import Look

ONE_ROW = torch.ones(1, dtype=torch.bool)
HOST = "cpu"  # requests stay on it: a copy to or from a GPU would wait for the forwards of others


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A text to decode, and how to read its answer."""

    source: Prepared | PreparedInfill
    run: Run  # its canvas and bans are on the CPU
    prompt_tokens: int
    eos_ids: tuple[int, ...]  # tokens that end the text
    state_bytes: int = 0  # kept for its sampler between steps
    widest: int = 0  # columns of its widest window

    @property
    def length(self) -> int:
        """Columns of the canvas."""
        return self.run.canvas.tokens.shape[1]

    @property
    def num_rows(self) -> int:
        """Rows that the request takes in a forward."""
        return 2 if self.run.guidance else 1

    def report(self, result: Result, *, since: float) -> Generation | Infilling:
        """Return the answer of a decoded canvas."""
        if isinstance(self.source, PreparedInfill):
            return self.source.report(result, since=since)
        [generation] = self.source.report(result, since=since)
        return generation


def text_request(
    model: TextModel,
    prompt: Prompt,
    sampler: Sampler,
    config: GenerationConfig,
    limits: Limits,
    *,
    special_tokens: bool = True,
) -> Request:
    """Return a request to answer a prompt as `unmask.generate` would; raise if it must be refused."""
    limits.check_config(config)
    limits.check_prompt(model, prompt)
    if isinstance(prompt, str) and prompt:
        prompt = encode_text(model, prompt, special_tokens=special_tokens)
    prepared = prepare(model, [prompt], sampler, config, device=HOST)
    return _checked(prepared, limits, prepared.prompt_tokens[0], prepared.eos_ids)


def infill_request(
    model: TextModel,
    text: str,
    sampler: Sampler,
    config: GenerationConfig,
    limits: Limits,
    *,
    special_tokens: bool = True,
) -> Request:
    """Return a request to fill the gaps of a text as `unmask.infill` would."""
    limits.check_config(config)
    limits.check_prompt(model, text)
    parts = read_gaps(text)
    limits.check_gaps(parts)
    prepared = prepare_infill(model, parts, sampler, config, special_tokens=special_tokens, device=HOST)
    given = int((prepared.canvas.tokens != prepared.canvas.mask_id).sum())
    return _checked(prepared, limits, given, ())


def _checked(
    source: Prepared | PreparedInfill, limits: Limits, prompt_tokens: int, eos_ids: tuple[int, ...]
) -> Request:
    run = source.run
    _check_servable(run.sampler)
    widest = _widest(run)
    request = Request(
        source=source,
        run=run,
        prompt_tokens=prompt_tokens,
        eos_ids=eos_ids,
        state_bytes=state_bytes(run.sampler.needs, run.model.info, widest),
        widest=widest,
    )
    limits.check_size(prompt_tokens, request.length, request.num_rows)
    limits.check_state(run.sampler, request.state_bytes)
    check_run(run.model, run.canvas, run.sampler, run.plan, run.options, run.bans)
    return request


def is_pooled(model: MaskedLM, run: Run) -> bool:
    """Return whether a compiled model pools a request's keys and values; guided requests are not pooled."""
    return runner_of(model) is not None and isinstance(run.cache, AppendCache) and not run.guidance


def _widest(run: Run) -> int:
    """Return the columns of the widest window."""
    windows = [run.plan.columns] if run.sampler.needs.span else [block.columns for block in run.plan.blocks]
    return max(int(window.stop - window.start) for window in windows)


def unservable(sampler: Sampler) -> str | None:
    """Name a sampler's need that a shared forward cannot meet; return None if there is none."""
    return extra_needs(sampler) if sampler.needs.speculation is None else "rows of its own for guesses"


def _check_servable(sampler: Sampler) -> None:
    """Raise if rows with this sampler cannot share forwards and decisions."""
    extra = unservable(sampler)
    if extra is not None:
        problem = f"needs {extra}, which the server does not compute"
        raise FieldError("sampler", sampler, problem, "use unmask.generate, or another sampler")
    try:
        hash(sampler)  # requests with equal samplers are decided together
    except TypeError:
        remedy = "make it a frozen dataclass whose fields are numbers, strings and tuples"
        raise FieldError("sampler", type(sampler).__name__, "must be hashable to be served", remedy) from None


class GroupKey(NamedTuple):
    """Requests with equal keys can be decided together."""

    sampler: Sampler
    options: Options
    blockwise: bool
    guided: bool
    banned: tuple[tuple[int, ...], tuple[int, ...], bool, bool, bool]
    width: int
    overlapping: bool
    leftover: bool
    history: tuple[int, bool]


class CachePlace(NamedTuple):
    """The place of a request's keys and values in a block cache."""

    row: int = 0
    requests: int = 1  # number of requests that share the cache


class RunningRequest:
    """A request that is being decoded: its state and its next turn."""

    def __init__(self, job: Job, info: ModelInfo) -> None:
        run = job.request.run
        self.job = job
        self.request = job.request
        self.run = run
        self.look: Look | None = None  # the last step as shown to its sender
        self.since = perf_counter()
        self.output: Tensor | None = None  # [W, D] or [W, V], output of its last forward
        self.cache: BlockCache | AppendCache | None = run.cache
        if isinstance(run.cache, AppendCache):  # a new one: it is freed with this object; the job may be kept
            self.cache = AppendCache(run.cache.block_length, sub_block=run.cache.sub_block)
        self.cache_place = CachePlace()
        self.rows = Rows(run.canvas, run.sampler.needs, run.options, info, run.stop, run.bans)
        self.given = run.canvas.tokens[0] != run.canvas.mask_id
        self._turns = turns(self.rows, run.plan, remaining)
        self._noise = RowNoise(run.seeds)
        self._draws: list[Tensor] = []  # random numbers of this turn
        self._counter = Counter(run.canvas)
        self._uncounted: Step | None = None
        self._next: Turn | None = None
        self._advance()

    def _advance(self) -> None:
        last, self._next = self._next, next(self._turns, None)
        new_block = self._next is not None and (last is None or last.number != self._next.number)
        if self._next is None or not new_block or self.cache is None:
            return
        if isinstance(self.cache, BlockCache):  # the old one may be shared
            self.cache = BlockCache(self.cache.recompute, refresh_every=self.cache.refresh_every)
            self.cache_place = CachePlace()
        self.cache.start_block(self._next.block.columns)

    def share_prefix(self, model: MaskedLM) -> None:
        """Reuse the pooled keys and values of an earlier prompt with the same beginning, if there is one."""
        runner, canvas = runner_of(model), self.rows.canvas
        if runner is not None and isinstance(self.cache, AppendCache) and is_pooled(model, self.run):
            padding = 0 if canvas.attend is None else int((~canvas.attend).sum())
            runner.kv_pool.begin(self.cache, canvas.tokens[0, : self.cache.block.start], padding)

    @property
    def is_done(self) -> bool:
        return self._next is None

    @property
    def turn(self) -> Turn:
        """The next turn."""
        assert self._next is not None, "the request is done"
        return self._next

    @property
    def is_fresh(self) -> bool:
        """Whether its next turn needs a forward."""
        return self.turn.todo.num_fresh > 0

    @property
    def reads_prediction(self) -> bool:
        """Whether a commit reads its prediction; the same for all requests with the same key."""
        return self.rows.needs.lookback > 0 or self.rows.language is not None

    @property
    def length(self) -> int:
        """The columns that its next forward must see: all or, with an exact cache, up to its block's end."""
        if isinstance(self.cache, AppendCache):
            return min(self.cache.block.stop, self.request.length)
        return self.request.length

    @property
    def bans(self) -> Bans:
        """The bans of its window, [1, W]."""
        return (self.rows.bans or self.run.bans).on(self.rows.canvas, self.turn.window)

    @property
    def key(self) -> GroupKey:
        """The key of its next decision."""
        run, history, window, bans = self.run, self.rows.history, self.turn.window, self.run.bans
        return GroupKey(
            sampler=run.sampler,
            options=run.options,
            blockwise=run.plan.blockwise,
            guided=run.guidance > 0,
            banned=(bans.ids, bans.ends, bans.closed is None, bans.language is None, bans.raw),
            width=window.stop - window.start,
            overlapping=run.plan.overlap is not None,
            leftover=self.turn.leftover,
            history=(len(history.past), history.carry is None),
        )

    def draw(self, number: int) -> Tensor:
        """Return the random numbers [1, W] of the `number`-th draw of this turn, the same in every call."""
        window = self.turn.window
        while len(self._draws) <= number:
            self._draws.append(self._noise(ONE_ROW, window.stop - window.start))
        return self._draws[number]

    def commit(self, prediction: Prediction, outcome: Outcome) -> Step:
        """Commit the decision and move on to the next turn; raise on broken logits."""
        step = self.rows.commit(self.turn, prediction, outcome)
        self._advance()
        self._draws = []
        self._uncounted = step
        return step

    def count_step(self) -> None:
        """Count the last step; the stepper calls this while the device works on the next one."""
        if self._uncounted is not None:
            self._counter.add(self._uncounted)
            self._uncounted = None

    def answer(self) -> Generation | Infilling:
        """Return the answer of a request that is done."""
        self.count_step()
        return self.request.report(self._counter.result(self.request.eos_ids), since=self.since)
