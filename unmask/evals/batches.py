"""The order in which a benchmark is asked: by prompt length, so that a batch holds little padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import FieldError, whole
from unmask.evals.task import Sample
from unmask.text.prompts import TextModel, encode_prompts


@dataclass(frozen=True, slots=True)
class Question:
    """A sample, and the tokens that the model reads."""

    sample: Sample
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Questions that are decoded together."""

    number: int  # counted from 0 over the whole run
    questions: tuple[Question, ...]


def encode(model: TextModel, samples: Sequence[Sample], new_tokens: int) -> list[Question]:
    """The samples as the model reads them; one that does not fit is named."""
    return [Question(sample, _ids(model, sample, new_tokens)) for sample in samples]


def _ids(model: TextModel, sample: Sample, new_tokens: int) -> tuple[int, ...]:
    try:
        [ids] = encode_prompts(model, [sample.prompt], new_tokens)
    except FieldError as error:
        raise error.inside(f"sample {sample.id}") from error
    except ValueError as error:
        raise ValueError(f"sample {sample.id}: {error}") from error
    return tuple(ids)


def make_batches(questions: Sequence[Question], size: int) -> list[Batch]:
    """Batches of `size`, shortest prompts first; the order depends on the samples alone."""
    whole("batch_size", size, 1)
    ordered = sorted(questions, key=lambda question: (len(question.ids), question.sample.id))
    starts = range(0, len(ordered), size)
    return [Batch(number, tuple(ordered[first : first + size])) for number, first in enumerate(starts)]
