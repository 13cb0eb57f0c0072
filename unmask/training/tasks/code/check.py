"""Score programs by their hidden tests, in the sandbox."""

from __future__ import annotations

import os
from collections.abc import Sequence

from unmask.sandbox import Job, run_jobs
from unmask.training.tasks.item import Item, Scored

WORKERS = min(8, os.cpu_count() or 1)
FIRST_FUNCTION = "candidate = [value for value in globals().values() if type(value) is type(lambda: 0)][0]"


def program_of(item: Item, text: str) -> str:
    """Return the program in a generated text: without fences, a bare body under its signature."""
    lines = [line for line in text.split("\n") if not line.startswith("```")]
    starts = [place for place, line in enumerate(lines) if line.startswith(("def ", "import ", "from "))]
    if starts:
        return "\n".join(lines[starts[0] :])
    body = "\n".join(lines)
    if body and not body.startswith(" "):
        body = f"    {body}"  # decoding may have stripped the first indent
    return f"{item.prompt}\n{body}\n" if item.meta["completes"] else body


def score_many(items: Sequence[Item], texts: Sequence[str]) -> list[Scored]:
    """Whether each program passes its item's tests."""
    programs = [program_of(item, text) for item, text in zip(items, texts, strict=True)]
    jobs = [Job(program, checks_of(item)) for item, program in zip(items, programs, strict=True)]
    outcomes = run_jobs(jobs, workers=WORKERS)
    return [Scored(outcome.passed, program) for outcome, program in zip(outcomes, programs, strict=True)]


def checks_of(item: Item) -> tuple[str, ...]:
    """Return an item's tests as statements; without an entry point they call the first function."""
    entry = item.meta["entry"]
    find = () if entry else (FIRST_FUNCTION,)
    return (
        *find,
        *(f"assert {entry or 'candidate'}({given}) == {wanted}" for given, wanted in item.meta["tests"]),
    )
