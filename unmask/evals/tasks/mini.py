"""The seven synthetic tasks of `unmask.training.tasks`, for the small models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from unmask.evals.task import Sample, Task, Verdict
from unmask.training.tasks import Item, get_task, test_items

VERSION = 1
CANVAS = 128
RUN = ("mini-humaneval", "mini-mbpp")  # answers are programs


def tasks(name: str) -> dict[str, Task]:
    """Return the task under its only protocol."""
    task = Task(
        name=name,
        protocol="mini",
        version=VERSION,
        load=partial(_load, name),
        score=partial(_score, name),
        max_new_tokens=CANVAS,
        runs_programs=name in RUN,
    )
    return {task.protocol: task}


def _load(name: str, folder: Path | None) -> list[Sample]:
    """Load the test items of the package; the folder is ignored."""
    return [_sample(place, item) for place, item in enumerate(test_items(name))]


def _sample(place: int, item: Item) -> Sample:
    chat = [{"role": "user", "content": item.prompt}]
    return Sample(f"{item.task}/{place}", chat, item.answer, {"key": item.key, "item": dict(item.meta)})


def _score(name: str, samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    items = [
        Item(name, sample.prompt[0]["content"], sample.gold, sample.meta["key"], sample.meta["item"])  # type: ignore[index]
        for sample in samples
    ]
    return [Verdict(scored.correct, scored.extracted) for scored in get_task(name).score_many(items, texts)]
