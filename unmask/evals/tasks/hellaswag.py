"""HellaSwag: which of four endings continues a text."""

from __future__ import annotations

import re
from functools import partial

from unmask.evals.data import Row, Source, index_field, text_field, texts_field
from unmask.evals.task import Sample, Task
from unmask.evals.tasks.choice import ask_for_letter, choice_task, first_line, letter_of, options
from unmask.text.prompts import Prompt

VERSION = 1
SOURCE = Source(file="hellaswag/val.jsonl", hub="Rowan/hellaswag", split="validation", rows=10042)
ASK = "Which ending continues this text best?"
OPENING = re.compile(r"[\s:-]*([A-D])")  # an "A" that begins a sentence counts: the released rule
LAST_SENTENCE = re.compile(r"(?<=[.?!] )(?:(?![.?!] ).)*$", re.DOTALL)


def tasks(name: str) -> dict[str, Task]:
    """Return HellaSwag under both protocols."""
    return {
        "paper": choice_task(name, "paper", VERSION, SOURCE, partial(_sample, False), letter_of(4)),
        "released": choice_task(name, "released", VERSION, SOURCE, partial(_sample, True), released_letter),
    }


def released_letter(text: str) -> str | None:
    """Return the letter at the start of the first line."""
    match = OPENING.match(first_line(text))
    return match.group(1) if match else None


def _sample(released: bool, place: int, row: Row) -> Sample:
    query = _prepared(text_field(row, "query")) if "query" in row else _query(row)
    endings = [clean(ending) for ending in texts_field(row, "endings", 4)]
    prompt: Prompt = ask_for_letter(f"{ASK}\n\n{query}", endings)
    if released:
        prompt = f"{query}\n{options(endings)}\nAnswer:\n"
    gold = "ABCD"[index_field(row, "label", 4)]
    return Sample(f"hellaswag/{place}", prompt, gold, {"query": query, "endings": endings})


def clean(text: str) -> str:
    """Remove the marks left by web pages from a text."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ").strip()


def _query(row: Row) -> str:
    """Return the text to continue, from the columns of the hub."""
    parts = [text_field(row, name) for name in ("activity_label", "ctx_a", "ctx_b")]
    return clean(f"{parts[0]}: {parts[1]} {parts[2].capitalize()}")


def _prepared(query: str) -> str:
    """Return the same text from a file's `query`, which does not capitalize the part to continue."""
    if query.endswith((".", "!", "?", '"', "'", ")", ",")):
        return query
    return LAST_SENTENCE.sub(lambda last: last.group().capitalize(), query)
