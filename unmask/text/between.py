"""Answers whose beginning and end are given: only the gap between them is decoded, many rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch

from unmask.errors import FieldError
from unmask.text.config import GenerationConfig
from unmask.text.generate import Generation, prepare
from unmask.text.prompts import Prompt, TextModel, tokenizer_of
from unmask.types import Sampler


def encode_between(model: TextModel, before: str, answer: str, after: str) -> tuple[int, ...]:
    """Return the tokens of both sides, a mask for every token of the answer between them, and an end token.

    The three texts are encoded separately, so they must meet where the tokenizer would split them anyway.
    """
    tokenizer = tokenizer_of(model)
    left, middle, right = (tokenizer.encode(text) for text in (before, answer, after))
    return (*left, *[model.info.mask_id] * len(middle), *right, model.info.eos_ids[-1])


def generate_between(
    model: TextModel,
    prompts: Sequence[Prompt],
    canvases: Sequence[Sequence[int]],
    sampler: Sampler,
    config: GenerationConfig,
) -> list[Generation]:
    """Return a Generation per prompt; each canvas holds its answer with masks in the gap.

    The columns after a canvas are filled with end tokens. A gap may not hold an end token.
    """
    since = perf_counter()
    prepared = prepare(model, prompts, sampler, config)
    blank, tokens = prepared.canvas, prepared.canvas.tokens.clone()
    length = tokens.shape[1] - blank.start
    for row, canvas in enumerate(canvases):
        if len(canvas) > length:
            remedy = f"set max_new_tokens to at least {len(canvas)}"
            raise FieldError(f"canvases[{row}]", len(canvas), f"must have at most {length} tokens", remedy)
        fill = [model.info.eos_ids[0]] * (length - len(canvas))
        tokens[row, blank.start :] = torch.tensor([*canvas, *fill], device=tokens.device)
    bans = replace(prepared.run.bans, ends=model.info.eos_ids, closed=tokens == model.info.mask_id)
    run = replace(prepared.run, canvas=replace(blank, tokens=tokens), bans=bans)
    answers = replace(prepared, run=run)
    return answers.read(answers.steps, since=since)
