"""Fill gaps in a text. Only the gaps are masked; all other tokens are kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from time import perf_counter
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.checks import is_model
from unmask.decoding.plan import Plan, share_steps
from unmask.decoding.result import Result, collect
from unmask.errors import FieldError, token_ids
from unmask.text.config import GenerationConfig
from unmask.text.constrain import constrain_gaps
from unmask.text.gaps import Gap, read_gaps
from unmask.text.generate import (
    DEFAULT_CONFIG,
    DEFAULT_SAMPLER,
    Cost,
    Output,
    PreparedRun,
    check_settings,
    choose,
    costs,
    prepare_run,
)
from unmask.text.prompts import TextModel, check_ids, device_of, encode_text, tokenizer_of
from unmask.text.tracing import Recorder
from unmask.types import Sampler, Step

Gapped: TypeAlias = str | Sequence[str | Gap]  # a text with gaps, as a string with the gap syntax or as parts


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Infilling(Output):
    """A text with its gaps filled, and its cost (the fields of `Counts`).

    Attributes:
        text: The given text with its gaps filled.
        gaps: The text of each gap.
        gap_ids: The tokens of each gap.
        given_tokens: Tokens of the given text.
    """

    gaps: tuple[str, ...]
    gap_ids: tuple[tuple[int, ...], ...]
    given_tokens: int


@overload
def infill(
    model: TextModel,
    text: str,
    sampler: str | Sampler = ...,
    config: GenerationConfig = ...,
    *,
    trace: bool = ...,
    **settings: Any,
) -> Infilling: ...


@overload
def infill(
    model: TextModel,
    text: Sequence[Any],
    sampler: str | Sampler = ...,
    config: GenerationConfig = ...,
    *,
    trace: bool = ...,
    **settings: Any,
) -> Any: ...


def infill(
    model: TextModel,
    text: Gapped | Sequence[Gapped],
    sampler: str | Sampler = DEFAULT_SAMPLER,
    config: GenerationConfig = DEFAULT_CONFIG,
    *,
    trace: bool = False,
    **settings: Any,
) -> Infilling | list[Infilling]:
    r"""Fill the gaps of a text: "[[gap 8]]" with 8 tokens, "[[gap 2-8]]" with 2 to 8; "\[[gap" is literal.

    A list that holds a Gap is one text in parts, which need no gap syntax. A list of texts returns a list.
    A gap with a range of lengths ends at an end token or a padding token.
    Gaps have their own lengths, so setting max_new_tokens raises; steps defaults to one per token to fill.

    `sampler`, `settings` and `trace` are as in `generate`.
    """
    chosen, config = choose(sampler, config, settings)
    if config.max_new_tokens is not None:
        length = config.max_new_tokens
        remedy = f"a gap has its own length: Gap({length}) or [[gap {length}]]"
        raise FieldError("max_new_tokens", length, "does not go with infilling", remedy)
    several = isinstance(text, (list, tuple)) and bool(text) and all(map(_is_text, text))
    texts: Sequence[Any] = text if several else [text]
    filled = []
    for each, seed, constraint in zip(
        texts, config.seeds(len(texts)), config.constraints(len(texts)), strict=True
    ):
        since = perf_counter()
        prepared = prepare_infill(model, each, chosen, replace(config, seed=seed, constraint=constraint))
        filled.append(prepared.read(prepared.steps, since=since, trace=trace))
    return filled if several else filled[0]


def _is_text(entry: object) -> bool:
    return isinstance(entry, (str, list, tuple))


@dataclass(frozen=True, slots=True)
class PreparedInfill(PreparedRun):
    """An encoded text with gaps, and everything needed to fill them."""

    model: TextModel
    sheet: Sheet

    def read(self, steps: Iterable[Step], *, since: float, trace: bool = False) -> Infilling:
        """Take all steps and return the filled text; `since` is the start time by perf_counter."""
        if not trace:
            return self.report(collect(steps, self.canvas, ()), since=since)
        recorder = Recorder(self.run)
        filled = self.read(recorder.watch(steps), since=since)
        return replace(filled, trace=recorder.traces()[0])

    def report(self, result: Result, *, since: float) -> Infilling:
        """Return the filled text of a decoded canvas."""
        [cost], tokens = costs(result, since=since), result.tokens[0].tolist()
        # an unknown id would silently decode to an empty string
        token_ids("Decision.tokens", tokens, self.model.info.vocab_size)
        return _read(self.model, self.sheet, tokens, self.run.seeds[0], cost)


def prepare_infill(
    model: TextModel,
    text: Gapped,
    sampler: Sampler,
    config: GenerationConfig,
    *,
    special_tokens: bool = True,
    device: str | None = None,
) -> PreparedInfill:
    """Prepare one text with gaps for callers that read every step, on `device` or on the model's."""
    is_model(model)
    check_settings(sampler, config)
    _check_config(config)
    _check_attention(model)
    place = device or device_of(model)
    sheet = lay_out(model, read_gaps(text), place, special_tokens=special_tokens)
    settings = replace(config, stop_at_eos=False)  # an end token ends its gap, not the text
    canvas = Canvas(sheet.tokens[None], None, sheet.gaps[0].start, model.info.mask_id)
    if config.next_block_at is not None:
        raise FieldError("next_block_at", config.next_block_at, "must be None for gaps")
    size = config.block_size(model.info, sheet.gaps[-1].stop - canvas.start)
    blocks = plan_gaps(canvas.masked(slice(None))[0].tolist(), config.steps, size)
    run = prepare_run(model, canvas, sampler, blocks, settings)
    bans = replace(run.bans, ends=sheet.ends, closed=sheet.closed[None])
    bans = constrain_gaps(bans, model, canvas, settings, sheet.first, sheet.last)
    return PreparedInfill(replace(run, bans=bans), model, sheet)


def plan_gaps(masks: Sequence[bool], steps: int | None, block_length: int | None) -> Plan:
    """Return a plan from the first to the last mask, without the blocks that hold no mask."""
    columns = [column for column, masked in enumerate(masks) if masked]
    start, stop = columns[0], columns[-1] + 1
    size = block_length or stop - start
    cuts = [slice(left, min(left + size, stop)) for left in range(start, stop, size)]
    blocks = [(cut, sum(masks[cut])) for cut in cuts if any(masks[cut])]
    total = len(columns) if steps is None else steps
    if total < len(blocks):
        raise FieldError(
            "steps",
            total,
            f"must be at least {len(blocks)}, one for each block of {size} with a gap",
            "raise steps or block_length",
        )
    shared = share_steps([cut for cut, _ in blocks], [count for _, count in blocks], total)
    return Plan(shared, total, blockwise=block_length is not None)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A text laid out in columns."""

    tokens: Tensor  # [N] int64
    closed: Tensor  # [N] bool, columns where a gap may not end
    ends: tuple[int, ...]  # the tokens that end a gap
    parts: tuple[str | Gap, ...]
    gaps: tuple[slice, ...]  # the columns of each gap
    first: int = 0  # first column of the text; 1 after a beginning-of-text token

    @property
    def last(self) -> Tensor:
        """The last columns of the gaps, [N] bool."""
        last = torch.zeros_like(self.closed)
        last[[gap.stop - 1 for gap in self.gaps]] = True
        return last


def lay_out(
    model: TextModel, parts: Sequence[str | Gap], device: torch.device | str, *, special_tokens: bool = True
) -> Sheet:
    """Encode the parts one after another, with a mask for every token that a gap may hold."""
    tokenizer, info = tokenizer_of(model), model.info
    tokens: list[int] = []
    if isinstance(parts[0], Gap) and tokenizer.special.bos is not None:
        tokens.append(tokenizer.special.bos)  # the first gap needs a token to its left
    first, closed, gaps = len(tokens), [False] * len(tokens), list[slice]()
    for part in parts:
        if isinstance(part, Gap):
            low, high = part.bounds
            gaps.append(slice(len(tokens), len(tokens) + high))
            tokens += [info.mask_id] * high
            closed += [True] * low + [False] * (high - low)
        else:
            ids = encode_text(model, part, special_tokens=special_tokens)
            check_ids("text", ids, info)
            tokens += ids
            closed += [False] * len(ids)
    if len(tokens) > info.max_length:
        problem = f"must have at most {info.max_length} tokens with its gaps, the most the model can read"
        raise FieldError("text", len(tokens), problem, "shorten the text or its gaps")
    pad = tokenizer.special.pad
    ends = dict.fromkeys(info.eos_ids if pad is None else (*info.eos_ids, pad))
    return Sheet(
        torch.tensor(tokens, device=device),
        torch.tensor(closed, device=device),
        tuple(ends),
        tuple(parts),
        tuple(gaps),
        first,
    )


def _read(model: TextModel, sheet: Sheet, tokens: list[int], seed: int, cost: Cost) -> Infilling:
    gap_ids = [
        tuple(takewhile(lambda token: token not in sheet.ends, tokens[columns])) for columns in sheet.gaps
    ]
    gaps = [tokenizer_of(model).decode(ids) for ids in gap_ids]
    filled = iter(gaps)
    return Infilling(
        text="".join(next(filled) if isinstance(part, Gap) else part for part in sheet.parts),
        gaps=tuple(gaps),
        gap_ids=tuple(gap_ids),
        given_tokens=len(tokens) - sum(columns.stop - columns.start for columns in sheet.gaps),
        seed=seed,
        **asdict(cost),
    )


def _check_attention(model: TextModel) -> None:
    """Raise if a gap could not see the text after it."""
    grid = model.info.grid
    if grid is not None:
        name = type(model).__name__
        problem = f"must see the text behind a gap, but it attends by blocks of {grid.length}"
        raise FieldError("model", name, problem, "use generate, or a model with full attention such as LLaDA")


def _check_config(config: GenerationConfig) -> None:
    if config.stop:
        raise FieldError("stop", config.stop, "does not go with infilling", "cut the gap's text yourself")
    if config.min_new_tokens:
        remedy = "use Gap(min=..., max=...) or [[gap 2-8]]"
        raise FieldError("min_new_tokens", config.min_new_tokens, "does not go with infilling", remedy)
