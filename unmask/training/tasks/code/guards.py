"""Early returns of small programs for special inputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from unmask.training.tasks.code.stages import Result
from unmask.training.tasks.phrases import one, whole

Input = Literal["numbers", "text", "words", "integer"]


@dataclass(frozen=True, slots=True)
class Guard:
    """When to return early, in words and in code with {p} for the parameter, and what to return."""

    says: str
    code: tuple[str, ...]
    applies: Callable[[Any], bool]
    value: Any


def draw_guard(rng: random.Random, takes: Input, result: Result) -> Guard:
    """Draw a guard for a program with this input and kind of result."""
    value = _value(rng, takes, result)
    if takes == "integer":
        return _integer_guard(rng, value)
    noun, parts = ("list", "numbers") if takes == "numbers" else ("text", "letters")
    if rng.random() < 0.6:
        return Guard(f"the {noun} is empty", ("not {p}", "len({p}) == 0"), lambda v: not v, value)
    limit = whole(rng, 3, 5) if takes == "numbers" else whole(rng, 3, 9)
    says = f"the {noun} has fewer than {limit} {parts}"
    return Guard(says, (f"len({{p}}) < {limit}",), lambda v: len(v) < limit, value)


def _integer_guard(rng: random.Random, value: Any) -> Guard:
    kind, limit = int(rng.random() * 3), whole(rng, 3, 9)
    if kind == 0:
        return Guard(f"the number is below {limit}", (f"{{p}} < {limit}",), lambda v: v < limit, value)
    if kind == 1:
        return Guard("the number is negative", ("{p} < 0",), lambda v: v < 0, value)
    return Guard("the number is 0", ("{p} == 0",), lambda v: v == 0, value)


def _value(rng: random.Random, takes: Input, result: Result) -> Any:
    if result == "bool":
        return False
    if result == "int" or (not result and takes == "integer"):
        return one(rng, (-1, 0, 1))
    if not result and takes == "numbers":
        return one(rng, ([], [0]))
    return one(rng, ("", "none"))
