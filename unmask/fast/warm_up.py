"""Compile and capture before the first request, by decoding dummy prompts of the expected shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from time import perf_counter

import torch

from unmask.text.config import GenerationConfig
from unmask.text.generate import prepare
from unmask.text.prompts import TextModel
from unmask.types import ModelInfo, Sampler, Step

STEPS = 3  # the first forward is full, the second may use a cache, the third decision has a history
PROMPT_TOKENS = 50  # not a multiple of 64, so that the canvas is padded as for most real prompts


def warm_up(
    model: TextModel,
    sampler: Sampler,
    config: GenerationConfig,
    *,
    rows: Sequence[int] = (1,),
    prompt_tokens: int = PROMPT_TOKENS,
) -> float:
    """Decode a few steps of dummy prompts in batches of `rows` rows, and return the seconds it took.

    It changes only what the model has compiled. Other shapes are compiled when they first occur.
    """
    prompt = dummy_prompt(model.info, config.new_tokens(model.info), prompt_tokens)
    once = replace(config, seed=0, stop=())
    return take_steps(prepare(model, [prompt] * size, sampler, once).steps for size in rows)


def take_steps(runs: Iterable[Iterator[Step]]) -> float:
    """Take the first steps of each run, drop the rest, and return the seconds it took."""
    began = perf_counter()
    for steps in runs:
        for _ in islice(steps, STEPS):
            pass
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return perf_counter() - began


def batch_sizes(most: int) -> tuple[int, ...]:
    """Return the batch sizes that a server runs: 1, 2, 4, ... and finally `most`."""
    powers = (1 << power for power in range(most.bit_length()))
    return tuple(dict.fromkeys((*powers, most)))


def dummy_prompt(info: ModelInfo, new_tokens: int, length: int = PROMPT_TOKENS) -> list[int]:
    """Return a prompt of ordinary tokens that leaves room for `new_tokens`."""
    special = {info.mask_id, info.pad_id, *info.eos_ids}
    ordinary = next(token for token in range(info.vocab_size) if token not in special)
    return [ordinary] * max(1, min(length, info.max_length - new_tokens))
