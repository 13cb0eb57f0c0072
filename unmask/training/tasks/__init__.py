"""Synthetic tasks: one per benchmark of the paper, some where order matters, and one for training only."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate

from unmask.errors import FieldError, one_of
from unmask.training.tasks import (
    about,
    mini_countdown,
    mini_fim_code,
    mini_fim_prose,
    mini_gsm8k,
    mini_hellaswag,
    mini_humaneval,
    mini_math,
    mini_mbpp,
    mini_mmlu,
    mini_recall,
    mini_report,
    mini_seating,
    mini_sudoku,
    mini_winogrande,
)
from unmask.training.tasks.files import fixed_items
from unmask.training.tasks.item import Item, Scored, Task
from unmask.training.tasks.split import draw_test, draw_train, is_test

__all__ = [
    "ORDER_TASKS",
    "SHARES",
    "TASKS",
    "TEST_TASKS",
    "Item",
    "Scored",
    "Task",
    "draw_test",
    "draw_train",
    "draw_training",
    "get_task",
    "is_test",
    "test_items",
]

_PAPER = (
    *(mini_gsm8k.TASK, mini_math.TASK, mini_humaneval.TASK, mini_mbpp.TASK),
    *(mini_mmlu.TASK, mini_hellaswag.TASK, mini_winogrande.TASK),
)
_ORDER = (
    *(mini_fim_code.TASK, mini_fim_prose.TASK, mini_sudoku.TASK, mini_countdown.TASK),
    *(mini_seating.TASK, mini_recall.TASK, mini_report.TASK),
)
TASKS: dict[str, Task] = {task.name: task for task in (*_PAPER, about.TASK, *_ORDER)}
TEST_TASKS = tuple(task.name for task in _PAPER)  # their test items are shipped
ORDER_TASKS = tuple(task.name for task in _ORDER)  # left to right is wrong or not enough; not shipped

SHARES: dict[str, float] = {
    "mini-gsm8k": 22,
    "mini-math": 17,
    "mini-humaneval": 13,
    "mini-mbpp": 14,
    "mini-mmlu": 12,
    "mini-hellaswag": 10,
    "mini-winogrande": 8,
    "about": 4,
}


def get_task(name: str) -> Task:
    """Return the task of this name."""
    one_of("task", name, TASKS)
    return TASKS[name]


def draw_training(rng: random.Random, shares: Mapping[str, float] = SHARES) -> Item:
    """Draw a training item; each task comes up in proportion to its share."""
    names, bounds = _bounds(tuple(shares.items()))
    place = rng.random() * bounds[-1]
    index = next(i for i, bound in enumerate(bounds) if place < bound)
    return draw_train(TASKS[names[index]], rng)


@lru_cache
def _bounds(shares: tuple[tuple[str, float], ...]) -> tuple[list[str], list[float]]:
    names = [get_task(name).name for name, _ in shares]
    return names, list(accumulate(share for _, share in shares))


def test_items(name: str) -> list[Item]:
    """Return the 500 fixed test items of a task."""
    task = get_task(name)
    if task.training_only:
        remedy = f"available: {', '.join((*TEST_TASKS, *ORDER_TASKS))}"
        raise FieldError("task", name, "only trains and has no test items", remedy)
    return list(fixed_items(task))


test_items.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it as a test
