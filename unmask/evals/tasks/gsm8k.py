"""GSM8K: grade-school word problems, judged by the final number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from unmask.evals.answers.number import final_number, plain_number, released_number
from unmask.evals.data import Row, Source, load_samples, text_field
from unmask.evals.task import Sample, Task, Verdict
from unmask.text.prompts import Message

VERSION = 1
SOURCE = Source(file="gsm8k/test.jsonl", hub="openai/gsm8k", configs=("main",), rows=1319)
ASK = 'Reason step by step, and end with "The final answer is" and the number.'
SYSTEM = "Reason step by step, then give the result in the form 'The final answer is [answer]'."


def tasks(name: str) -> dict[str, Task]:
    """Return GSM8K under both protocols."""
    return {
        "paper": _task(name, "paper", _ask, final_number),
        "released": _task(name, "released", _ask_released, released_number),
    }


def _task(
    name: str, protocol: str, ask: Callable[[str], list[Message]], extract: Callable[[str], str | None]
) -> Task:
    return Task(
        name=name,
        protocol=protocol,
        version=VERSION,
        load=partial(load_samples, SOURCE, partial(_sample, ask)),
        score=partial(_score, extract),
    )


def _ask(question: str) -> list[Message]:
    return [{"role": "user", "content": f"{question}\n\n{ASK}"}]


def _ask_released(question: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def _sample(ask: Callable[[str], list[Message]], place: int, row: Row) -> Sample:
    solution, mark, number = text_field(row, "answer").rpartition("####")
    if not mark or not number.strip():
        raise ValueError("the field 'answer' must end with #### and a number")
    return Sample(
        f"gsm8k/{place}",
        ask(text_field(row, "question")),
        _gold(number.strip()),
        {"solution": solution.strip()},
    )


def _gold(number: str) -> str:
    try:
        return plain_number(number)
    except ArithmeticError as error:
        raise ValueError(f"the field 'answer' must end with #### and a number, got {number!r}") from error


def _score(
    extract: Callable[[str], str | None], samples: Sequence[Sample], texts: Sequence[str]
) -> list[Verdict]:
    numbers = [extract(text) for text in texts]
    return [Verdict(number == sample.gold, number) for sample, number in zip(samples, numbers, strict=True)]
