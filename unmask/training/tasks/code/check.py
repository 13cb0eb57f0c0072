"""Scores programs by their hidden tests, in a limited child process. Runs no generated code itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from unmask.training.tasks.item import Item, Scored

RUNNER = Path(__file__).with_name("runner.py")


def program_of(item: Item, text: str) -> str:
    """The whole program that a generated text stands for: fences off, a bare body put under its signature."""
    lines = [line for line in text.split("\n") if not line.startswith("```")]
    starts = [place for place, line in enumerate(lines) if line.startswith(("def ", "import ", "from "))]
    if starts:
        return "\n".join(lines[starts[0] :])
    body = "\n".join(lines)
    if body and not body.startswith(" "):
        body = f"    {body}"  # decoding may have stripped the first indent
    return f"{item.prompt}\n{body}\n" if item.meta["completes"] else body


def score_many(items: Sequence[Item], texts: Sequence[str]) -> list[Scored]:
    """Whether each program passes its item's tests; one helper process forks a limited child for each."""
    programs = [program_of(item, text) for item, text in zip(items, texts, strict=True)]
    jobs = [
        [program, item.meta["entry"], item.meta["tests"]]
        for item, program in zip(items, programs, strict=True)
    ]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(RUNNER)],
            input=json.dumps(jobs),
            capture_output=True,
            text=True,
            cwd=empty,
            env={},
            check=True,
        )
    return [
        Scored(passed, program) for passed, program in zip(json.loads(done.stdout), programs, strict=True)
    ]
