"""MMLU: questions of 57 subjects with four options."""

from __future__ import annotations

import string
from functools import partial

from unmask.evals.data import Row, Source, index_field, text_field, texts_field
from unmask.evals.task import Sample, Task
from unmask.evals.tasks.choice import ask_for_letter, choice_task, first_line, letter_of, options
from unmask.text.prompts import Prompt

VERSION = 1
SOURCE = Source(file="mmlu/test.jsonl", hub="cais/mmlu", configs=("all",), rows=14042)
PUNCTUATION = str.maketrans("", "", string.punctuation)


def tasks(name: str) -> dict[str, Task]:
    """Return MMLU under both protocols."""
    return {
        "paper": choice_task(name, "paper", VERSION, SOURCE, partial(_sample, False), letter_of(4)),
        "released": choice_task(name, "released", VERSION, SOURCE, partial(_sample, True), released_letter),
    }


def released_letter(text: str) -> str | None:
    """Return the first line if it is only a letter; ignore case and punctuation."""
    line = first_line(text).translate(PUNCTUATION).strip().upper()
    return line if line in {"A", "B", "C", "D"} else None


def _sample(released: bool, place: int, row: Row) -> Sample:
    choices, subject = texts_field(row, "choices", 4), text_field(row, "subject").replace("_", " ")
    question = text_field(row, "question").strip()
    prompt: Prompt = ask_for_letter(question, choices)
    if released:
        about = f"The following are multiple choice questions (with answers) about {subject}."
        prompt = f"{about}\n\n{question}\n{options(choices)}\nAnswer:"
    gold = "ABCD"[index_field(row, "answer", 4)]
    return Sample(f"mmlu/{place}", prompt, gold, {"subject": row["subject"], "choices": choices})
