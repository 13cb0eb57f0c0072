"""Prompts and scoring of multiple-choice benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from unmask.evals.answers.letter import final_letter
from unmask.evals.data import Make, Source, load_samples
from unmask.evals.task import Sample, Task, Verdict
from unmask.text.prompts import Message

Extract: TypeAlias = Callable[[str], str | None]
UNTIL = re.compile(r"</s>|\n")  # as released, applied after the generation, so it saves no steps


def choice_task(name: str, protocol: str, version: int, source: Source, make: Make, extract: Extract) -> Task:
    """Make a benchmark whose gold answers are letters."""
    return Task(
        name=name,
        protocol=protocol,
        version=version,
        load=partial(load_samples, source, make),
        score=partial(_score, extract),
    )


def options(texts: Sequence[str]) -> str:
    """Write the options with their letters, one per line."""
    return "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", texts, strict=False))


def ask_for_letter(question: str, texts: Sequence[str]) -> list[Message]:
    """Return a chat that asks for the letter of the right option."""
    letters = ", ".join("ABCD"[: len(texts) - 1]) + f" or {'ABCD'[len(texts) - 1]}"
    ask = f'Give the letter of the right option, {letters}, in the form "The final answer is (letter)".'
    return [{"role": "user", "content": f"{question}\n\n{options(texts)}\n\n{ask}"}]


def letter_of(count: int) -> Extract:
    """Return the function that reads the letter under our own protocol."""
    return partial(final_letter, letters="ABCD"[:count])


def first_line(text: str) -> str:
    """Return the first line, all that the released harness reads."""
    return UNTIL.split(text, maxsplit=1)[0]


def _score(extract: Extract, samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    letters = [extract(text) for text in texts]
    return [Verdict(letter == sample.gold, letter) for sample, letter in zip(samples, letters, strict=True)]
