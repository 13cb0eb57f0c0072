"""The fixed test items that ship with the package, as JSON lines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from importlib import resources

from unmask.training.tasks.item import Item, Task
from unmask.training.tasks.split import draw_test

ITEMS_PER_TASK = 500
SEED = 20260101
FOLDER = resources.files("unmask.training.tasks") / "data"


def drawn_items(task: Task) -> list[Item]:
    """Draw the test items of a task, no problem twice."""
    rng, found = random.Random(f"{SEED} {task.name}"), dict[str, Item]()
    while len(found) < ITEMS_PER_TASK:
        item = draw_test(task, rng)
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
