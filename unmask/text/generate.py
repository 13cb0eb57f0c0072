"""Text in, text out: encode the prompts, build the canvas, run the loop, decode the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter

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
from unmask.errors import FieldError, token_ids, whole
from unmask.samplers.less import LESS
from unmask.text.config import GenerationConfig
from unmask.text.constrain import constrain
from unmask.text.end_of_text import Ending, StopWatch
from unmask.text.prompts import Prompt, device_of, encode_prompts, find_tokenizer
from unmask.types import Counts, MaskedLM, Sampler, Step

DEFAULT_SAMPLER = LESS()
DEFAULT_CONFIG = GenerationConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Counts[int]):
    """The cost of one text: the fields of `Counts`, and seconds.

    Attributes:
        seconds: Wall-clock time of the whole batch.
    """

    seconds: float = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Cost):
    """One answer: its text, why it ended, and its cost (the fields of `Counts`).

    Attributes:
        text: The answer; it ends before the first end token and the earliest stop string.
        token_ids: The tokens of the text; without a tokenizer, this is the answer.
        prompt_tokens: Tokens of the prompt.
        finish: Why the text ended: "eos" (an end token), "stop" (a stop string) or "length".
        seed: Repeats the text, if tokens are drawn.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish: Finish
    seed: int


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
        """An iterator of steps; each one runs the model."""
        return self.run.steps()


@dataclass(frozen=True, slots=True)
class Prepared(PreparedRun):
    """Encoded prompts, and everything needed to decode them and read the answers."""

    ending: Ending
    prompt_tokens: tuple[int, ...]  # per row
    stop_at_eos: bool
    vocab_size: int

    def read(self, steps: Iterable[Step], *, since: float) -> list[Generation]:
        """Take all steps and return a Generation per row; `since` is the start time by perf_counter."""
        return self.report(collect(steps, self.canvas, self.eos_ids), since=since)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a row."""
        return self.ending.eos_ids if self.stop_at_eos else ()

    def report(self, result: Result, *, since: float) -> list[Generation]:
        """Return a Generation per row of a decoded canvas."""
        cost = costs(result, since=since)
        rows = zip(result.generated.tolist(), self.prompt_tokens, self.run.seeds, cost, strict=True)
        return [self._read_row(*row) for row in rows]

    def _read_row(self, generated: list[int], prompt_tokens: int, seed: int, cost: Cost) -> Generation:
        # an unknown id would silently decode to an empty string
        token_ids("Decision.tokens", generated, self.vocab_size)
        text, ids, finish = self.ending.read(generated)
        return Generation(
            text=text, token_ids=ids, prompt_tokens=prompt_tokens, finish=finish, seed=seed, **asdict(cost)
        )


def generate(
    model: MaskedLM,
    prompts: Sequence[Prompt],
    sampler: Sampler = DEFAULT_SAMPLER,
    config: GenerationConfig = DEFAULT_CONFIG,
    *,
    batch_size: int | None = None,
) -> list[Generation]:
    """Return a Generation per prompt, in order; a prompt is raw text, a chat or token ids.

    A model without a tokenizer takes token ids and returns `Generation.token_ids`; `text` is then empty.
    `batch_size` rows are decoded at a time, or all if it is None; the answers do not depend on it.
    """
    is_model(model)
    check_settings(sampler, config)
    encoded = encode_prompts(model, prompts, config.new_tokens(model.info))
    seeds, constraints = config.seeds(len(encoded)), config.constraints(len(encoded))
    size = len(encoded) if batch_size is None else batch_size
    whole("batch_size", size, 1)
    generations: list[Generation] = []
    for first in range(0, len(encoded), size):
        since, rows = perf_counter(), slice(first, first + size)
        settings = replace(config, seed=seeds[rows], constraint=constraints[rows])
        batch = prepare(model, encoded[rows], sampler, settings)
        generations += batch.read(batch.steps, since=since)
    return generations


def prepare(
    model: MaskedLM, prompts: Sequence[Prompt], sampler: Sampler, config: GenerationConfig
) -> Prepared:
    """Prepare one batch for callers that read every step; the model runs only as they do."""
    is_model(model)
    check_settings(sampler, config)
    info, length = model.info, config.new_tokens(model.info)
    encoded = encode_prompts(model, prompts, length)
    canvas = blank(encoded, length, mask_id=info.mask_id, pad_id=info.pad_id, device=device_of(model))
    blocks = plan(
        canvas.start,
        length,
        steps=config.steps or length,
        block_length=config.block_size(info, length),
        next_block_at=config.next_block_at,
    )
    ending = Ending(find_tokenizer(model), info.mask_id, info.eos_ids, config.stop)
    run = prepare_run(model, canvas, sampler, blocks, config)
    run = replace(run, bans=constrain(run.bans, model, canvas, config))
    if config.stop:
        run = replace(run, stop=StopWatch(ending, canvas.start, len(encoded)))
    return Prepared(run, ending, tuple(map(len, encoded)), config.stop_at_eos, info.vocab_size)


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
    guidance: float = 0.0
    cache: BlockCache | None = None
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
            noise=RowNoise(self.seeds),
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
        cache=config.new_cache(fitted, blocks=len(blocks.blocks)),
    )


def costs(result: Result, *, since: float) -> list[Cost]:
    """Return the cost of each row."""
    seconds = perf_counter() - since
    return [Cost(**asdict(counts), seconds=seconds) for counts in result.per_row()]
