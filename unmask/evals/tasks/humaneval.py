"""HumanEval: complete a Python function, judged by running its tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from unmask.evals.answers.program import complete, defines, find_code
from unmask.evals.data import Row, Source, load_samples, text_field
from unmask.evals.task import Sample, Task, Verdict
from unmask.evals.tasks.running import judge
from unmask.sandbox import Job
from unmask.text.prompts import Message

VERSION = 1
SOURCE = Source(file="humaneval/HumanEval.jsonl", hub="openai/openai_humaneval", rows=164)
ASK = "Complete this Python function. Answer with the whole function in one ```python block."
SYSTEM = "You complete only Python code."
# the first block; its tag and closing fence are optional, and a bare body keeps its indentation
BLOCK = re.compile(r"```(?:python)?[^\S\n]*\n?(.*?)(?:```|\Z)", re.DOTALL)


def tasks(name: str) -> dict[str, Task]:
    """Return HumanEval under both protocols."""
    return {
        "paper": _task(name, "paper", _ask, _completion),
        "released": _task(name, "released", _ask_released, _completion_released),
    }


def _task(
    name: str, protocol: str, ask: Callable[[str], list[Message]], extract: Callable[[Sample, str], str]
) -> Task:
    return Task(
        name=name,
        protocol=protocol,
        version=VERSION,
        load=partial(load_samples, SOURCE, partial(_sample, ask)),
        score=partial(_score, extract),
        runs_programs=True,
    )


def _ask(prompt: str) -> list[Message]:
    return [{"role": "user", "content": f"{ASK}\n\n```python\n{prompt}```"}]


def _ask_released(prompt: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]


def _sample(ask: Callable[[str], list[Message]], place: int, row: Row) -> Sample:
    meta = {name: text_field(row, name) for name in ("prompt", "entry_point", "test")}
    return Sample(
        text_field(row, "task_id"), ask(meta["prompt"]), text_field(row, "canonical_solution"), meta
    )


def _completion(sample: Sample, text: str) -> str:
    """Join the prompt, with its imports and helpers, and the function; or the prompt and a body."""
    code = find_code(text, sample.meta["entry_point"])
    prompt: str = sample.meta["prompt"]
    return f"{prompt}\n{code}" if defines(code, sample.meta["entry_point"]) else complete(prompt, code)


def _completion_released(sample: Sample, text: str) -> str:
    match = BLOCK.search(text)
    return str(sample.meta["prompt"]) + (match.group(1) if match else text).strip("\n")


def _score(
    extract: Callable[[Sample, str], str], samples: Sequence[Sample], texts: Sequence[str]
) -> list[Verdict]:
    programs = [extract(sample, text) for sample, text in zip(samples, texts, strict=True)]
    jobs = [
        Job(program, (f"{sample.meta['test']}\ncheck({sample.meta['entry_point']})",), _helpers(sample))
        for sample, program in zip(samples, programs, strict=True)
    ]
    return judge(jobs)


def _helpers(sample: Sample) -> str:
    """Return the prompt before the function to complete: the tests use the functions there."""
    return str(sample.meta["prompt"].rpartition(f"def {sample.meta['entry_point']}(")[0])
