"""The interface of a task: draw items and score texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Item:
    """One problem with one valid answer; `key` identifies the problem in any wording."""

    task: str
    prompt: str
    answer: str
    key: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scored:
    """Whether a text solves its item, and the answer read from it."""

    correct: bool
    extracted: str | None


Score = Callable[[Sequence[Item], Sequence[str]], list[Scored]]


@dataclass(frozen=True, slots=True)
class Task:
    """A named source of items; `score_many` judges texts as the benchmark does."""

    name: str
    draw: Callable[[random.Random], Item]
    score_many: Score
    training_only: bool = False

    def score(self, item: Item, text: str) -> Scored:
        """Judge one text."""
        return self.score_many([item], [text])[0]


def one_by_one(score: Callable[[Item, str], Scored]) -> Score:
    """Turn a scorer of one text into a scorer of many."""
    return lambda items, texts: [score(item, text) for item, text in zip(items, texts, strict=True)]
