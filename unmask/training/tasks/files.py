"""The fixed test items: those of the paper's tasks are shipped as JSON lines, all others are drawn again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

from unmask.training.tasks.item import Item, Task
from unmask.training.tasks.split import draw_test

ITEMS_PER_TASK = 500
DEV_ITEMS = 150  # for choosing settings
HELD_OUT_ITEMS = 500  # for confirming a choice
SEED = 20260101
FOLDER = resources.files("unmask.training.tasks") / "data"


def drawn_items(task: Task) -> list[Item]:
    """Draw the test items of a task, no problem twice."""
    return _draw_new(task, f"{SEED} {task.name}", ITEMS_PER_TASK)


@cache
def fixed_items(task: Task) -> tuple[Item, ...]:
    """Return the test items of a task: the shipped ones, or the same draws every time."""
    shipped = (FOLDER / f"{task.name}.jsonl").is_file()
    return shipped_items(task.name) if shipped else tuple(drawn_items(task))


@cache
def dev_items(task: Task) -> tuple[Item, ...]:
    """Draw items for tuning. Their problems are neither training nor test problems of the package."""
    return tuple(_draw_new(task, f"{SEED} {task.name} dev", DEV_ITEMS, fixed_items(task)))


@cache
def held_out_items(task: Task) -> tuple[Item, ...]:
    """Draw items for a last check. Their problems are neither training, test nor dev problems."""
    known = (*fixed_items(task), *dev_items(task))
    return tuple(_draw_new(task, f"{SEED} {task.name} held out", HELD_OUT_ITEMS, known))


def _draw_new(task: Task, seed: str, count: int, known: Sequence[Item] = ()) -> list[Item]:
    """Draw items of the test split, no problem twice and none of the known problems."""
    rng, keys, found = random.Random(seed), {item.key for item in known}, dict[str, Item]()
    while len(found) < count:
        item = draw_test(task, rng)
        if item.key not in keys:
            found.setdefault(item.key, item)
    return list(found.values())


def to_lines(items: list[Item]) -> Iterator[str]:
    """Format items as one compact JSON object per line."""
    for item in items:
        record = {"prompt": item.prompt, "answer": item.answer, "key": item.key, "meta": item.meta}
        yield json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"


@cache
def shipped_items(name: str) -> tuple[Item, ...]:
    """Read the shipped test items of a task."""
    text = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return tuple(Item(task=name, **json.loads(line)) for line in text.splitlines())
