"""Decode a batch and judge its texts: the part of a run that needs the model."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch

from unmask.evals.batches import EncodedSample, EvalBatch
from unmask.evals.records import Record, prompt_hash
from unmask.evals.task import Sample, Task, Verdict
from unmask.text.between import generate_between
from unmask.text.config import GenerationConfig
from unmask.text.generate import Generation, generate
from unmask.text.prompts import TextModel
from unmask.types import Sampler


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of a batch, its times and its memory."""

    batch: int
    records: tuple[Record, ...]
    seconds: float
    scoring: float
    peak_memory: int


def decode_batch(
    model: TextModel,
    task: Task,
    batch: EvalBatch,
    sampler: Sampler,
    config: GenerationConfig,
    *,
    device: AbstractContextManager[object] | None = None,
) -> Decoded:
    """Decode a batch and judge its texts; hold `device` while the model runs, not while judging."""
    with device or nullcontext():
        began = perf_counter()
        answers = _generate(model, batch, sampler, config)
        decoded = perf_counter()
    samples = [one.sample for one in batch.samples]
    verdicts = judge(task, samples, [answer.text for answer in answers])
    rows = zip(batch.samples, answers, verdicts, strict=True)
    return Decoded(
        batch.number,
        tuple(_record(model, *row) for row in rows),
        seconds=decoded - began,
        scoring=perf_counter() - decoded,
        peak_memory=peak_memory(),
    )


def _generate(
    model: TextModel, batch: EvalBatch, sampler: Sampler, config: GenerationConfig
) -> list[Generation]:
    prompts = [one.ids for one in batch.samples]
    canvases = [one.canvas for one in batch.samples if one.canvas is not None]
    if canvases:  # either all samples of a task have a canvas, or none
        return generate_between(model, prompts, canvases, sampler, config)
    return generate(model, prompts, sampler, config)


def judge(task: Task, samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    """Return a verdict per text; raise with the sample id if a scorer fails."""
    try:
        verdicts = task.score(samples, texts)
    except Exception as error:
        _blame(task, samples, texts)
        raise ValueError(f"scoring {_span(samples)} failed: {_named(error)}") from error
    if len(verdicts) != len(samples):
        raise ValueError(f"{task.name} gave {len(verdicts)} verdicts for {_span(samples)}")
    return verdicts


def _blame(task: Task, samples: Sequence[Sample], texts: Sequence[str]) -> None:
    """Score the texts one by one, and raise at the first that cannot be scored."""
    for sample, text in zip(samples, texts, strict=True):
        try:
            task.score([sample], [text])
        except Exception as error:
            raise ValueError(f"scoring sample {sample.id} of {task.name} failed: {_named(error)}") from error


def _span(samples: Sequence[Sample]) -> str:
    return f"the {len(samples)} samples from {samples[0].id} to {samples[-1].id}"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _record(model: TextModel, encoded: EncodedSample, answer: Generation, verdict: Verdict) -> Record:
    sample, canvas = encoded.sample, encoded.canvas
    return Record(
        id=sample.id,
        prompt=prompt_hash(sample),
        text=answer.text,
        extracted=verdict.extracted,
        correct=verdict.correct,
        also=dict(verdict.also),
        steps=answer.steps,
        forwards=answer.forwards,
        forced_share=answer.forced_share,
        leftovers=answer.leftovers,
        tokens=len(answer.token_ids) if canvas is None else canvas.count(model.info.mask_id),
        prompt_tokens=answer.prompt_tokens,
        finish=answer.finish,
    )


def peak_memory() -> int:
    """Return the peak memory in bytes, of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
