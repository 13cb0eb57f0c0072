"""MBPP and its hand-checked subset: write a small Python function, judged by running three asserts."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unmask.evals.answers.program import find_code
from unmask.evals.data import Row, Source, load_samples, text_field, texts_field
from unmask.evals.task import Sample, Task, Verdict
from unmask.evals.tasks.running import judge
from unmask.sandbox import Job
from unmask.text.prompts import Message

VERSION = 1
HUB = "google-research-datasets/mbpp"
TEST_SPLIT = range(11, 511)  # task ids


def _in_test_split(row: Row) -> bool:
    return row["task_id"] in TEST_SPLIT


SOURCES = {
    "mbpp": Source(file="mbpp/mbpp.jsonl", hub=HUB, configs=("full",), rows=500, keep=_in_test_split),
    "mbpp-sanitized": Source(
        file="mbpp/sanitized-mbpp.json", hub=HUB, configs=("sanitized",), rows=257, keep=_in_test_split
    ),
}
ASK = "Answer with the function in one ```python block."
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def tasks(name: str) -> dict[str, Task]:
    """Return the problems under both protocols."""
    return {
        "paper": _task(name, "paper", _ask, _code),
        "released": _task(name, "released", _ask_released, _code_released),
    }


def _task(
    name: str,
    protocol: str,
    ask: Callable[[str, list[str]], list[Message]],
    extract: Callable[[Sample, str], str],
) -> Task:
    return Task(
        name=name,
        protocol=protocol,
        version=VERSION,
        load=partial(load_samples, SOURCES[name], partial(_sample, name, ask)),
        score=partial(_score, extract),
        runs_programs=True,
    )


def _ask(task: str, tests: list[str]) -> list[Message]:
    listed = "\n".join(tests)
    content = f"{task}\nYour code must pass these tests:\n\n```python\n{listed}\n```\n\n{ASK}"
    return [{"role": "user", "content": content}]


def _ask_released(task: str, tests: list[str]) -> list[Message]:
    content = (
        f"You are an expert Python programmer, and here is your task: {task} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )
    return [{"role": "user", "content": content}]


def _sample(name: str, ask: Callable[[str, list[str]], list[Message]], place: int, row: Row) -> Sample:
    tests = texts_field(row, "test_list")
    if not tests:
        raise ValueError("the field 'test_list' is empty, so every program would pass")
    task = text_field(row, "prompt" if "prompt" in row else "text")
    setup = (
        texts_field(row, "test_imports") if "test_imports" in row else [text_field(row, "test_setup_code")]
    )
    meta: dict[str, Any] = {"tests": tests, "setup": [part for part in setup if part.strip()]}
    return Sample(f"{name}/{row['task_id']}", ask(task, tests), text_field(row, "code"), meta)


def called_name(tests: Sequence[str]) -> str:
    """Return the function that the tests call, not the builtins around the call."""
    calls = [
        node.func.id
        for test in tests
        for node in ast.walk(ast.parse(test.strip()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    return next((name for name in calls if not hasattr(builtins, name)), "")


def _code(sample: Sample, text: str) -> str:
    return find_code(text, called_name(sample.meta["tests"]))


def _code_released(sample: Sample, text: str) -> str:
    match = BLOCK.search(text)
    return match.group(1) if match else text


def _score(
    extract: Callable[[Sample, str], str], samples: Sequence[Sample], texts: Sequence[str]
) -> list[Verdict]:
    # the set-up runs after the program, because it may use the program's classes
    jobs = [
        Job(extract(sample, text), (*sample.meta["setup"], *sample.meta["tests"]))
        for sample, text in zip(samples, texts, strict=True)
    ]
    return judge(jobs)
