"""The synthetic tasks of `unmask.training.tasks`, for the small models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from unmask.evals.task import Sample, Task, Verdict
from unmask.training.tasks import Item, get_task, test_items
from unmask.training.tasks.files import dev_items, held_out_items

VERSION = 1
CANVAS = 128
LONG_CANVAS = {"mini-report": 320}
RUN = ("mini-humaneval", "mini-mbpp", "mini-fim-code")  # tasks whose answers are programs
# no problem is in two of these sets, and none is a training problem
ITEMS: dict[str, Callable[[str], Sequence[Item]]] = {
    "mini": test_items,
    "dev": lambda name: dev_items(get_task(name)),
    "held-out": lambda name: held_out_items(get_task(name)),
}


def tasks(name: str) -> dict[str, Task]:
    """Return the task on the shipped test items, on dev items and on held-out items."""
    return {
        protocol: Task(
            name=name,
            protocol=protocol,
            version=VERSION,
            load=partial(_load, name, protocol),
            score=partial(_score, name),
            max_new_tokens=LONG_CANVAS.get(name, CANVAS),
            runs_programs=name in RUN,
        )
        for protocol in ITEMS
    }


def _load(name: str, protocol: str, folder: Path | None) -> list[Sample]:
    """Load the items of a protocol; the folder is ignored."""
    prefix = name if protocol == "mini" else f"{name}/{protocol}"
    return [_sample(f"{prefix}/{place}", item) for place, item in enumerate(ITEMS[protocol](name))]


def _sample(name: str, item: Item) -> Sample:
    chat = [{"role": "user", "content": item.prompt}]
    around = {"around": item.meta["around"]} if "around" in item.meta else {}
    return Sample(name, chat, item.answer, {"key": item.key, "item": dict(item.meta), **around})


def _score(name: str, samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    items = [
        Item(name, sample.prompt[0]["content"], sample.gold, sample.meta["key"], sample.meta["item"])  # type: ignore[index]
        for sample in samples
    ]
    return [Verdict(scored.correct, scored.extracted) for scored in get_task(name).score_many(items, texts)]
