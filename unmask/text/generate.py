"""Text in, text out: encode the prompts, build the canvas, run the loop, decode the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from time import perf_counter
from typing import Any, overload

from unmask.catalog import DEFAULT_SAMPLER_NAME
from unmask.decoding.append_cache import AppendCache
from unmask.decoding.bans import Bans
from unmask.decoding.cache import BlockCache
from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.checks import is_model, is_sampler
from unmask.decoding.draw import RowNoise
from unmask.decoding.guidance import Guided
from unmask.decoding.loop import denoise
from unmask.decoding.options import Options
from unmask.decoding.plan import Plan, plan
from unmask.decoding.result import Finish, Result, collect
from unmask.decoding.rows import Stop
from unmask.errors import FieldError, at_least, flag, token_ids, whole
from unmask.samplers import SAMPLERS
from unmask.samplers.registry import as_sampler
from unmask.text.config import GenerationConfig
from unmask.text.constrain import constrain
from unmask.text.display import as_html, as_line
from unmask.text.end_of_text import Ending, StopWatch
from unmask.text.progress import counted, showing
from unmask.text.prompts import Message, Prompt, device_of, encode_prompts, find_tokenizer, is_single
from unmask.text.tracing import Recorder
from unmask.trace import Trace
from unmask.types import Counts, MaskedLM, ModelInfo, Sampler, Step

DEFAULT_SAMPLER = SAMPLERS[DEFAULT_SAMPLER_NAME]
DEFAULT_CONFIG = GenerationConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Counts[int]):
    """The cost of one text: the fields of `Counts`, and seconds.

    Attributes:
        seconds: Wall-clock time of the whole batch.
    """

    seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Output(Cost):
    """A text, its cost, and its steps if they were kept. A notebook shows it with a replay of the steps.

    Attributes:
        text: The text.
        seed: The seed that reproduces the text, if tokens are drawn.
        trace: The steps, with `trace=True`; None: not kept.
    """

    text: str
    seed: int
    trace: Trace | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return as_line(self)

    def _repr_html_(self) -> str:
        return as_html(self)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Generation(Output):
    """One answer: its text, why it ended, and its cost (the fields of `Counts`).

    Attributes:
        text: The answer; it ends before the first end token and the earliest stop string.
        token_ids: The tokens of the text; without a tokenizer, this is the answer.
        prompt_tokens: Tokens of the prompt.
        finish: Why the text ended: "eos" (an end token), "stop" (a stop string) or "length".
    """

    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish: Finish


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run of the loop that has not begun."""

    run: Run

    @property
    def canvas(self) -> Canvas:
        """The canvas before the first step."""
        return self.run.canvas

    @property
    def plan(self) -> Plan:
        """The blocks and their budgets."""
        return self.run.plan

    @property
    def steps(self) -> Iterator[Step]:
        """A new iterator over the steps, which runs the model as it advances."""
        return self.run.steps()


@dataclass(frozen=True, slots=True)
class Prepared(PreparedRun):
    """Encoded prompts, and everything needed to decode them and read the answers."""

    ending: Ending
    prompt_tokens: tuple[int, ...]  # number of prompt tokens of each row
    stop_at_eos: bool
    vocab_size: int
    length: int  # number of new tokens per row

    def read(self, steps: Iterable[Step], *, since: float, trace: bool = False) -> list[Generation]:
        """Take all steps and return a Generation per row; `since` is the start time by perf_counter."""
        if not trace:
            return self.report(collect(steps, self.canvas, self.eos_ids), since=since)
        recorder = Recorder(self.run)
        generations = self.read(recorder.watch(steps), since=since)
        return [replace(one, trace=kept) for one, kept in zip(generations, recorder.traces(), strict=True)]

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a row."""
        return self.ending.eos_ids if self.stop_at_eos else ()

    def report(self, result: Result, *, since: float) -> list[Generation]:
        """Return a Generation per row of a decoded canvas."""
        cost = costs(result, since=since)
        rows = zip(result.texts(self.length), self.prompt_tokens, self.run.seeds, cost, strict=True)
        return [self._read_row(*row) for row in rows]

    def _read_row(self, generated: list[int], prompt_tokens: int, seed: int, cost: Cost) -> Generation:
        # an unknown id would silently decode to an empty string
        token_ids("Decision.tokens", generated, self.vocab_size)
        text, ids, finish = self.ending.read(generated)
        return Generation(
            text=text, token_ids=ids, prompt_tokens=prompt_tokens, finish=finish, seed=seed, **asdict(cost)
        )


@overload
def generate(
    model: MaskedLM,
    prompts: str | Sequence[Message] | Sequence[int],
    sampler: str | Sampler = ...,
    config: GenerationConfig = ...,
    *,
    batch_size: int | None = ...,
    trace: bool = ...,
    progress: bool | None = ...,
    **settings: Any,
) -> Generation: ...


@overload
def generate(
    model: MaskedLM,
    prompts: Sequence[Prompt],
    sampler: str | Sampler = ...,
    config: GenerationConfig = ...,
    *,
    batch_size: int | None = ...,
    trace: bool = ...,
    progress: bool | None = ...,
    **settings: Any,
) -> list[Generation]: ...


def generate(
    model: MaskedLM,
    prompts: Prompt | Sequence[Prompt],
    sampler: str | Sampler = DEFAULT_SAMPLER,
    config: GenerationConfig = DEFAULT_CONFIG,
    *,
    batch_size: int | None = None,
    trace: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Generation | list[Generation]:
    """Return the Generation of one prompt, or a list of them for a list of prompts.

    A prompt is raw text, a chat (a list of {"role": ..., "content": ...}) or a list of token ids. So a
    string, a list of messages and a list of whole numbers are one prompt; every other list holds prompts.

    `sampler` is a sampler, its name, or "FILE.py:Class", whose file is then run. `settings` are fields of
    GenerationConfig, such as `max_new_tokens=64`; they override `config`.
    `batch_size` rows are decoded at a time, or all if it is None; the answers do not depend on it.
    `trace` keeps every step in `Generation.trace`, and a notebook then shows a replay of the canvas.
    `progress` shows a bar; None shows it for a list that takes long, on a terminal or in a notebook.

    A model without a tokenizer needs token ids and returns `Generation.token_ids`; `text` is then empty.
    """
    is_model(model)
    flag("trace", trace)
    chosen, config = choose(sampler, config, settings)
    if is_single(prompts):
        [generation] = _generate(model, [prompts], chosen, config, batch_size, trace, progress or False)
        return generation
    return _generate(model, prompts, chosen, config, batch_size, trace, progress)


def _generate(
    model: MaskedLM,
    prompts: Sequence[Any],
    sampler: Sampler,
    config: GenerationConfig,
    batch_size: int | None,
    trace: bool,
    progress: bool | None,
) -> list[Generation]:
    """Decode the prompts batch by batch."""
    encoded = encode_prompts(model, prompts, config.new_tokens(model.info))
    seeds, constraints = config.seeds(len(encoded)), config.constraints(len(encoded))
    size = len(encoded) if batch_size is None else batch_size
    whole("batch_size", size, 1)
    generations: list[Generation] = []
    with showing(progress, len(encoded) * config.new_tokens(model.info)) as update:
        for first in range(0, len(encoded), size):
            since, rows = perf_counter(), slice(first, first + size)
            settings = replace(config, seed=seeds[rows], constraint=constraints[rows])
            batch = prepare(model, encoded[rows], sampler, settings)
            steps = counted(batch.steps, batch.canvas, update, first)
            generations += batch.read(steps, since=since, trace=trace)
    return generations


def choose(
    sampler: str | Sampler, config: GenerationConfig, settings: dict[str, Any]
) -> tuple[Sampler, GenerationConfig]:
    """Return the sampler, looked up if it is a name, and the config with the settings applied."""
    if isinstance(sampler, GenerationConfig):
        raise FieldError("sampler", sampler, "is a GenerationConfig", "pass it as config=...")
    chosen = as_sampler(sampler)
    check_settings(chosen, config)
    own: list[str] = [item.name for item in fields(chosen)] if is_dataclass(chosen) else []
    for name in settings:
        if name in own and not hasattr(config, name):
            name_of = repr(sampler) if isinstance(sampler, str) else "NAME"
            remedy = f"use unmask.make_sampler({name_of}, {name}={settings[name]!r})"
            raise FieldError(name, settings[name], "is a field of the sampler, not of the generation", remedy)
    return chosen, config.changed(settings)


def prepare(
    model: MaskedLM,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    config: GenerationConfig,
    *,
    device: str | None = None,
) -> Prepared:
    """Prepare one batch for callers that read every step; the model runs only when they read.

    The canvas is on `device`, by default on the model's.
    """
    is_model(model)
    check_settings(sampler, config)
    info, length = model.info, config.new_tokens(model.info)
    encoded = encode_prompts(model, prompts, length)
    place = device or device_of(model)
    canvas = blank(encoded, length, mask_id=info.mask_id, pad_id=info.pad_id, grid=info.grid, device=place)
    columns = canvas.tokens.shape[1] - canvas.start
    block_length = config.block_size(info, columns)
    alone_every = info.grid.length if info.grid is not None and info.grid.first_alone else None
    blocks = plan(
        canvas.start,
        columns,
        steps=_budget(config.steps, sampler, info, length, columns, block_length or columns),
        block_length=block_length,
        alone_every=alone_every,
        even=config.steps is not None and info.grid is not None and alone_every is None,
        next_block_at=config.next_block_at,
    )
    ending = Ending(find_tokenizer(model), info.mask_id, info.eos_ids, config.stop)
    run = prepare_run(model, canvas, sampler, blocks, config)
    bans = constrain(run.bans, model, canvas, config, run.sampler, blockwise=blocks.blockwise)
    run = replace(run, bans=bans)
    if config.stop:
        run = replace(run, stop=StopWatch(ending, canvas.starts))
    if info.grid is not None:
        size = info.grid.length
        needed = [first - canvas.start + length for first in canvas.starts]
        run = replace(run, widths=tuple(-(-columns // size) * size for columns in needed))
    return Prepared(run, ending, tuple(map(len, encoded)), config.stop_at_eos, info.vocab_size, length)


def _budget(
    steps: int | None, sampler: Sampler, info: ModelInfo, length: int, columns: int, block_length: int
) -> int:
    """Return the step budget of all columns.

    On a grid there may be more columns than new tokens, and how many depends on the batch. So `steps` is the
    budget of the new tokens alone, and every block gets the same share, alone and in a batch.
    """
    blocks = -(-columns // block_length)
    if steps is None:
        return columns + sampler.needs.extra_steps * blocks
    if info.grid is None:
        return steps
    asked = -(-length // block_length)
    at_least("steps", steps, asked)
    return blocks * -(-steps // asked)


def check_settings(sampler: object, config: object) -> None:
    """Raise if the sampler or the config has the wrong type."""
    is_sampler(sampler)
    if not isinstance(config, GenerationConfig):
        raise FieldError("config", config, "must be a GenerationConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The arguments of one run of the loop."""

    model: MaskedLM
    canvas: Canvas
    sampler: Sampler
    plan: Plan
    options: Options
    bans: Bans
    seeds: tuple[int, ...]
    widths: tuple[int, ...] | None = None  # columns that each row would have alone; None: those of the batch
    guidance: float = 0.0
    cache: BlockCache | AppendCache | None = None
    stop: Stop | None = None

    def steps(self) -> Iterator[Step]:
        """Run the loop."""
        model, canvas = self.model, self.canvas
        return denoise(
            Guided.on(model, canvas, self.guidance) if self.guidance else model,
            canvas,
            self.sampler,
            self.plan,
            self.options,
            cache=self.cache,
            noise=RowNoise(self.seeds, self.widths),
            stop=self.stop,
            bans=self.bans,
        )


def prepare_run(
    model: MaskedLM, canvas: Canvas, sampler: Sampler, blocks: Plan, config: GenerationConfig
) -> Run:
    """Return the arguments of the loop under these settings."""
    fitted = config.fit(sampler, model.info)
    options = config.options(model.info)
    return Run(
        model=model,
        canvas=canvas,
        sampler=fitted,
        plan=blocks,
        options=options,
        bans=options.bans(model.info, canvas),
        seeds=config.seeds(len(canvas.tokens)),
        guidance=config.guidance,
        cache=config.new_cache(fitted, model.info, blocks=len(blocks.blocks)),
    )


def costs(result: Result, *, since: float) -> list[Cost]:
    """Return the cost of each row."""
    seconds = perf_counter() - since
    return [Cost(**asdict(counts), seconds=seconds) for counts in result.per_row()]
