"""The batches of a benchmark, sorted by prompt length so that a batch has little padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import FieldError, whole
from unmask.evals.task import Sample
from unmask.text.between import encode_between
from unmask.text.prompts import TextModel, encode_prompts


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """A sample, the token ids of its prompt and, if its answer has given parts, the canvas."""

    sample: Sample
    ids: tuple[int, ...]
    canvas: tuple[int, ...] | None = None  # given tokens, and masks in the gap; None: all masks


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """Samples that are decoded together."""

    number: int  # counted from 0 over the whole run
    samples: tuple[EncodedSample, ...]


def encode(model: TextModel, samples: Sequence[Sample], new_tokens: int) -> list[EncodedSample]:
    """Encode the samples; raise with the id of one that does not fit."""
    return [
        EncodedSample(sample, _ids(model, sample, new_tokens), _canvas(model, sample)) for sample in samples
    ]


def _ids(model: TextModel, sample: Sample, new_tokens: int) -> tuple[int, ...]:
    try:
        [ids] = encode_prompts(model, [sample.prompt], new_tokens)
    except FieldError as error:
        raise error.inside(f"sample {sample.id}") from error
    except ValueError as error:
        raise ValueError(f"sample {sample.id}: {error}") from error
    return tuple(ids)


def _canvas(model: TextModel, sample: Sample) -> tuple[int, ...] | None:
    """Encode the given parts of an answer, with a gap as long as that of the gold answer."""
    if "around" not in sample.meta:
        return None
    before, after = sample.meta["around"]
    return encode_between(model, before, sample.gold[len(before) : len(sample.gold) - len(after)], after)


def make_batches(samples: Sequence[EncodedSample], size: int, *, first: int = 0) -> list[EvalBatch]:
    """Make batches of `size`, shortest prompts first, numbered from `first`.

    The order depends only on the samples, so a resumed run makes the batches that the killed run lacks.
    """
    whole("batch_size", size, 1)
    ordered = sorted(samples, key=lambda one: (len(one.ids), one.sample.id))
    starts = range(0, len(ordered), size)
    return [
        EvalBatch(number, tuple(ordered[start : start + size])) for number, start in enumerate(starts, first)
    ]
