"""Score programs by their hidden tests, in the sandbox."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence

from unmask.sandbox import Job, run_jobs
from unmask.training.tasks.item import Item, Scored

WORKERS = min(8, os.cpu_count() or 1)


def program_of(item: Item, text: str) -> str:
    """Return the program in a generated text, without fences. Put a bare body under its signature."""
    lines = [line for line in text.split("\n") if not line.startswith("```")]
    starts = [place for place, line in enumerate(lines) if line.startswith(("def ", "import ", "from "))]
    if starts:
        return "\n".join(lines[starts[0] :])
    body = "\n".join(lines)
    if body and not body.startswith(" "):
        body = f"    {body}"  # decoding may have stripped the first indent
    return f"{item.prompt}\n{body}\n" if item.meta["completes"] else body


def score_many(items: Sequence[Item], texts: Sequence[str]) -> list[Scored]:
    """Score each program by its item's tests."""
    programs = [program_of(item, text) for item, text in zip(items, texts, strict=True)]
    jobs = [Job(program, checks_of(item, program)) for item, program in zip(items, programs, strict=True)]
    outcomes = run_jobs(jobs, workers=WORKERS)
    return [Scored(outcome.passed, program) for outcome, program in zip(outcomes, programs, strict=True)]


def checks_of(item: Item, program: str) -> tuple[str, ...]:
    """Return an item's tests as statements, which without an entry point call the first function."""
    entry = item.meta["entry"] or first_function(program)
    return tuple(f"assert {entry}({given}) == {wanted}" for given, wanted in item.meta["tests"])


def first_function(program: str) -> str:
    """Return the name of the first function or lambda of a program, or "candidate" if there is none."""
    try:
        body = ast.parse(program).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return "candidate"  # the program fails in any case
    for node in body:
        if isinstance(node, ast.FunctionDef):
            return node.name
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            return ast.unparse(node.targets[0])
    return "candidate"
