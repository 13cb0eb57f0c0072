"""From a request to a row that can be decoded: everything that needs the tokenizer and may be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.loop import Options, check
from unmask.decoding.plan import Plan
from unmask.decoding.result import Result
from unmask.serving.limits import Limits
from unmask.text.config import GenerationConfig
from unmask.text.end_of_text import StopWatch
from unmask.text.gaps import read_gaps
from unmask.text.generate import Batch, Generation, prepare
from unmask.text.infill import Filling, Infilling, prepare_infill
from unmask.text.prompts import Prompt, TextModel
from unmask.types import ModelInfo, Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One row to decode, and the way back to text."""

    source: Batch | Filling
    canvas: Canvas  # one row, on the CPU
    plan: Plan
    sampler: Sampler
    options: Options
    seed: int
    prompt_tokens: int
    eos_ids: tuple[int, ...]  # end the text
    guidance: float = 0.0
    ends: tuple[int, ...] = ()  # tokens that have no chance in `closed` columns
    closed: Tensor | None = None  # [N] bool
    done: Callable[[Tensor], Tensor] | None = None
    given: Tensor = field(init=False)  # [N] bool, what the canvas holds at the start

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", self.canvas.tokens[0] != self.canvas.mask_id)

    @property
    def length(self) -> int:
        """Columns of the canvas."""
        return self.canvas.tokens.shape[1]

    @property
    def lanes(self) -> int:
        """Rows that it takes in a forward."""
        return 2 if self.guidance else 1

    def report(self, result: Result, *, since: float) -> Generation | Infilling:
        """The answer of a canvas that is decoded."""
        if isinstance(self.source, Filling):
            return self.source.report(result, since=since)
        [generation] = self.source.report(result, since=since)
        return generation


def continue_text(
    model: TextModel, prompt: Prompt, sampler: Sampler, config: GenerationConfig, limits: Limits
) -> Work:
    """A prompt to be answered, as `unmask.generate` would."""
    limits.check_config(config)
    batch = prepare(model, [prompt], sampler, config)
    done = StopWatch(batch.ending, batch.canvas.start, 1) if config.stop else None
    [prompt_tokens] = batch.prompt_tokens
    return _work(
        model.info,
        batch,
        sampler,
        config,
        limits,
        prompt_tokens=prompt_tokens,
        eos_ids=batch.eos_ids,
        done=done,
    )


def fill_gaps(
    model: TextModel, text: str, sampler: Sampler, config: GenerationConfig, limits: Limits
) -> Work:
    """A text whose gaps are to be filled, as `unmask.infill` would."""
    limits.check_config(config)
    parts = read_gaps(text)
    limits.check_gaps(parts)
    filling = prepare_infill(model, parts, sampler, config)
    sheet = filling.sheet
    return _work(
        model.info,
        filling,
        sampler,
        replace(config, stop_at_eos=False),  # an end token ends its gap, not the text
        limits,
        prompt_tokens=int((filling.canvas.tokens != filling.canvas.mask_id).sum()),
        eos_ids=(),
        ends=sheet.ends,
        closed=sheet.closed.cpu(),
    )


def _work(
    info: ModelInfo,
    source: Batch | Filling,
    sampler: Sampler,
    config: GenerationConfig,
    limits: Limits,
    **more: Any,
) -> Work:
    fitted, [seed] = config.fit(sampler, info), config.seeds(1)
    _check_hashable(fitted)
    work = Work(
        source=source,
        canvas=source.canvas.to("cpu"),
        plan=source.plan,
        sampler=fitted,
        options=config.options(info),
        seed=seed,
        guidance=config.guidance,
        **more,
    )
    limits.check_size(work.prompt_tokens, work.length, work.lanes)
    check(info, work.canvas, work.plan, work.options)
    return work


def _check_hashable(sampler: Sampler) -> None:
    """Rows of equal samplers are decided together, so the engine must be able to compare them."""
    try:
        hash(sampler)
    except TypeError:
        raise ValueError(
            f"sampler must be hashable to be served, got {type(sampler).__name__}; make it a frozen "
            "dataclass whose fields are numbers, strings and tuples"
        ) from None
