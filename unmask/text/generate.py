"""Text in, text out: encode the prompts, build the canvas, drain the loop, read the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter

from torch import Tensor

from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.checks import check_length, is_model, is_sampler
from unmask.decoding.draw import RowNoise
from unmask.decoding.guidance import Guided
from unmask.decoding.loop import denoise
from unmask.decoding.plan import Plan, plan
from unmask.decoding.result import Finish, Result, collect
from unmask.errors import token_ids
from unmask.samplers.less import LESS
from unmask.text.config import GenerationConfig
from unmask.text.end_of_text import Ending, StopWatch
from unmask.text.prompts import Prompt, device_of, encode_prompts, find_tokenizer
from unmask.types import MaskedLM, Sampler, Step

DEFAULT_SAMPLER = LESS()
DEFAULT_CONFIG = GenerationConfig()
COUNTS = ("steps", "forwards", "accepted", "forced", "forced_steps", "empty_steps", "leftovers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a row took to decode; the same as if it had been decoded alone, except for the seconds."""

    steps: int
    forwards: int  # a step on an unchanged canvas needs none
    accepted: int  # tokens committed by the rule
    forced: int  # tokens committed by the fallback
    forced_steps: int  # steps in which the fallback acted
    empty_steps: int  # steps in which nothing was eligible
    leftovers: int  # tokens filled in after the budget was spent
    seconds: float = field(compare=False)  # of the whole batch

    @property
    def forced_share(self) -> float:
        """Share of steps in which the fallback acted."""
        return self.forced_steps / max(self.steps, 1)

    @property
    def empty_share(self) -> float:
        """Share of steps in which nothing was eligible (the released code's fallback statistic)."""
        return self.empty_steps / max(self.steps, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Cost):
    """The answer to one prompt."""

    text: str  # up to the first end token and the earliest stop string, both left out
    token_ids: tuple[int, ...]  # the tokens that hold the text; the whole answer without a tokenizer
    prompt_tokens: int
    finish: Finish


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch ready to be decoded: its canvas, its steps to come, and the way back to text."""

    canvas: Canvas
    plan: Plan
    steps: Iterator[Step]  # runs the model as it is drained
    ending: Ending
    prompt_tokens: tuple[int, ...]  # per row
    stop_at_eos: bool
    vocab_size: int

    def read(self, steps: Iterable[Step], *, since: float) -> list[Generation]:
        """A Generation per row, once all steps are taken; `since` is a time of perf_counter."""
        return self.report(collect(steps, self.canvas, self.eos_ids), since=since)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a row."""
        return self.ending.eos_ids if self.stop_at_eos else ()

    def report(self, result: Result, *, since: float) -> list[Generation]:
        """A Generation per row of a canvas that is decoded."""
        rows = zip(result.generated.tolist(), self.prompt_tokens, costs(result, since=since), strict=True)
        return [self._read_row(generated, length, cost) for generated, length, cost in rows]

    def _read_row(self, generated: list[int], prompt_tokens: int, cost: Cost) -> Generation:
        token_ids("Decision.tokens", generated, self.vocab_size)  # such an id would be read as no text
        text, ids, finish = self.ending.read(generated)
        return Generation(
            text=text, token_ids=ids, prompt_tokens=prompt_tokens, finish=finish, **asdict(cost)
        )


def generate(
    model: MaskedLM,
    prompts: Sequence[Prompt],
    sampler: Sampler = DEFAULT_SAMPLER,
    config: GenerationConfig = DEFAULT_CONFIG,
    *,
    batch_size: int | None = None,
) -> list[Generation]:
    """A Generation per prompt, in order; a prompt is raw text, a chat or token ids.

    A model without a tokenizer takes token ids and answers with `Generation.token_ids`; `text` is then empty.
    `batch_size` rows are decoded at a time, all of them if it is None; the answers do not depend on it.
    """
    is_model(model)
    check_settings(sampler, config)
    encoded = encode_prompts(model, prompts, config.new_tokens(model.info))
    seeds = config.seeds(len(encoded))
    size = len(encoded) if batch_size is None else batch_size
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"batch_size must be a whole number >= 1 or None, got {batch_size!r}")
    generations: list[Generation] = []
    for first in range(0, len(encoded), size):
        since, rows = perf_counter(), slice(first, first + size)
        batch = prepare(model, encoded[rows], sampler, replace(config, seed=seeds[rows]))
        generations += batch.read(batch.steps, since=since)
    return generations


def prepare(model: MaskedLM, prompts: Sequence[Prompt], sampler: Sampler, config: GenerationConfig) -> Batch:
    """One batch, for callers that look at every step; nothing runs before its steps are drained."""
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
    )
    ending = Ending(find_tokenizer(model), info.mask_id, info.eos_ids, config.stop)
    done = StopWatch(ending, canvas.start, len(encoded)) if config.stop else None
    steps = run(guided(model, canvas, config), canvas, sampler, blocks, config, done)
    return Batch(canvas, blocks, steps, ending, tuple(map(len, encoded)), config.stop_at_eos, info.vocab_size)


def check_settings(sampler: object, config: object) -> None:
    """Refuse what only looks like a sampler or a config."""
    is_sampler(sampler)
    if not isinstance(config, GenerationConfig):
        raise ValueError(f"config must be a GenerationConfig, got {config!r}")


def guided(model: MaskedLM, canvas: Canvas, config: GenerationConfig) -> MaskedLM:
    """The model under the guidance that the config asks for."""
    return Guided.on(model, canvas, config.guidance) if config.guidance else model


def run(
    model: MaskedLM,
    canvas: Canvas,
    sampler: Sampler,
    blocks: Plan,
    config: GenerationConfig,
    done: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Step]:
    """The loop under these settings."""
    fitted = config.fit(sampler, model.info)
    check_length(fitted, blocks.columns)
    cache = config.new_cache(fitted, blocks=len(blocks.blocks))
    noise = RowNoise(config.seeds(len(canvas.tokens)))
    options = config.options(model.info)
    return denoise(model, canvas, fitted, blocks, options, cache=cache, noise=noise, done=done)


def costs(result: Result, *, since: float) -> list[Cost]:
    """What each row took."""
    seconds = perf_counter() - since
    rows = zip(*(getattr(result, name).tolist() for name in COUNTS), strict=True)
    return [Cost(**dict(zip(COUNTS, row, strict=True)), seconds=seconds) for row in rows]
