"""The paper's seven benchmarks and our own small ones: prompts, scoring, runs and comparisons."""

from __future__ import annotations

from importlib import import_module

from unmask.errors import one_of
from unmask.evals.run import evaluate
from unmask.evals.summary import Summary
from unmask.evals.task import Sample, Task, Verdict

__all__ = ["TASKS", "Sample", "Summary", "Task", "Verdict", "evaluate", "get_task"]

_MINI = ("gsm8k", "math", "humaneval", "mbpp", "mmlu", "hellaswag", "winogrande")
_ORDER = ("fim-code", "fim-prose", "sudoku", "countdown", "seating", "recall", "report")
# name -> the module whose `tasks()` returns a Task per protocol, the default first
TASKS: dict[str, str] = {
    "gsm8k": "gsm8k",
    "math": "math",
    "math500": "math",
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "mbpp-sanitized": "mbpp",
    "mmlu": "mmlu",
    "hellaswag": "hellaswag",
    "winogrande": "winogrande",
    **{f"mini-{name}": "mini" for name in (*_MINI, *_ORDER)},
}


def get_task(name: str, protocol: str | None = None) -> Task:
    """Return a task by name, under its default protocol if none is named."""
    one_of("task", name, TASKS)
    tasks: dict[str, Task] = import_module(f"unmask.evals.tasks.{TASKS[name]}").tasks(name)
    if protocol is None:
        return next(iter(tasks.values()))
    one_of("protocol", protocol, tasks)
    return tasks[protocol]
