"""WinoGrande: which of two names fills the gap of a sentence."""

from __future__ import annotations

import re
from functools import partial

from unmask.evals.data import Row, Source, text_field
from unmask.evals.task import Sample, Task
from unmask.evals.tasks.choice import ask_for_letter, choice_task, first_line, letter_of, options
from unmask.text.prompts import Prompt

VERSION = 1
SOURCE = Source(
    file="winogrande/dev.jsonl",
    hub="allenai/winogrande",
    configs=("winogrande_xl",),
    split="validation",
    rows=1267,
)
ASK = "Which option fills the gap, written as _, in this sentence?"
OPENING = re.compile(r"[\s:-]*([ab])", re.IGNORECASE)  # an "a" that begins a word counts: the released rule


def tasks(name: str) -> dict[str, Task]:
    """Return WinoGrande under both protocols."""
    return {
        "paper": choice_task(name, "paper", VERSION, SOURCE, partial(_sample, False), letter_of(2)),
        "released": choice_task(name, "released", VERSION, SOURCE, partial(_sample, True), released_letter),
    }


def released_letter(text: str) -> str | None:
    """Return the a or b at the start of the first line."""
    match = OPENING.match(first_line(text))
    return match.group(1).upper() if match else None


def _sample(released: bool, place: int, row: Row) -> Sample:
    sentence, names = text_field(row, "sentence"), [text_field(row, "option1"), text_field(row, "option2")]
    if row["answer"] not in ("1", "2"):
        raise ValueError(f"the field 'answer' must be '1' or '2', got {row['answer']!r}")
    prompt: Prompt = ask_for_letter(f"{ASK}\n\n{sentence}", names)
    if released:
        prompt = f"{sentence}\n{options(names)}\nA or B:\n"
    return Sample(f"winogrande/{place}", prompt, "AB"[int(row["answer"]) - 1], {"names": names})
