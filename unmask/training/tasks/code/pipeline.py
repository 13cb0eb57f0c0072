"""A small program as data: its input, its guard and its stages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.training.tasks.code import stages as s
from unmask.training.tasks.code.guards import Guard, Input, draw_guard
from unmask.training.tasks.code.stages import Family, Stage
from unmask.training.tasks.phrases import one, some, whole

INPUTS: tuple[Input, ...] = ("numbers", "numbers", "numbers", "text", "text", "words", "integer", "integer")

NUM_INPUTS = 5
NO_DIGITS = str.maketrans("", "", "0123456789")
LETTERS = ("a", "e", "o", "s", "t", "x")


def _spelled(families: Sequence[Family], constants: Sequence[Any]) -> tuple[Stage, ...]:
    return tuple(family(constant) for family in families for constant in constants)


@dataclass(frozen=True, slots=True)
class Shelf:
    """All stages for one kind of input. The stages of a family have a constant, plain stages have none."""

    plain: tuple[Stage, ...]
    families: tuple[tuple[Stage, ...], ...]  # for each family, its stage for each constant
    ends: tuple[Stage, ...]
    end_share: float


def _shelf(
    plain: tuple[Stage, ...],
    families: Sequence[tuple[Family, Sequence[Any]]],
    ends: Sequence[Stage],
    share: float,
) -> Shelf:
    return Shelf(
        plain, tuple(_spelled([family], constants) for family, constants in families), tuple(ends), share
    )


def _with(families: Sequence[Family], constants: Sequence[Any]) -> list[tuple[Family, Sequence[Any]]]:
    return [(family, constants) for family in families]


FEW, SEVERAL, MANY = (2, 3), (2, 3, 4, 5), tuple(range(2, 10))
SHELVES: dict[Input, Shelf] = {
    "numbers": _shelf(
        s.NUMBER_STAGES, _with(s.NUMBER_FAMILIES, MANY) + _with(s.NUMBER_SLICES, FEW), s.NUMBER_ENDS, 0.6
    ),
    "text": _shelf(
        s.TEXT_STAGES,
        _with(s.TEXT_SLICES, SEVERAL) + _with(s.TEXT_FAMILIES, (2, 3)) + _with(s.LETTER_FAMILIES, LETTERS),
        (*s.TEXT_ENDS, *_spelled(s.LETTER_ENDS, LETTERS)),
        0.4,
    ),
    "words": _shelf(
        s.WORD_STAGES, _with(s.WORD_FAMILIES, SEVERAL) + _with(s.WORD_SLICES, FEW), s.WORD_ENDS, 1.0
    ),
    "integer": _shelf(
        s.INTEGER_STAGES,
        _with(s.INTEGER_FAMILIES, MANY),
        (*s.INTEGER_ENDS, *_spelled(s.INTEGER_END_FAMILIES, MANY)),
        0.2,
    ),
}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in order, with the end stage last if there is one."""

    takes: Input
    stages: tuple[Stage, ...]
    guard: Guard | None = None

    @property
    def key(self) -> str:
        """Identify the program independently of its wording and spelling."""
        guard = "" if self.guard is None else f"{self.guard.code[0]} {self.guard.value!r}; "
        return f"{self.takes}: {guard}{' | '.join(stage.key for stage in self.stages)}"

    def __call__(self, value: Any) -> Any:
        if self.guard is not None and self.guard.applies(value):
            return self.guard.value
        if self.takes == "words":
            value = value.split()
        for stage in self.stages:
            value = stage.apply(value)
        return value


def draw_stage(rng: random.Random, shelf: Shelf) -> Stage:
    """Draw a stage; each family is as likely as each plain stage."""
    place = int(rng.random() * (len(shelf.plain) + len(shelf.families)))
    if place < len(shelf.plain):
        return shelf.plain[place]
    return one(rng, shelf.families[place - len(shelf.plain)])


def draw_pipeline(
    rng: random.Random, fewest: int, most: int, guard_share: float
) -> tuple[Pipeline, list[Any]]:
    """Draw `fewest` to `most` stages, including the end, and inputs that show the effect of each."""
    takes = one(rng, INPUTS)
    while True:
        pipeline = _draw(rng, takes, whole(rng, fewest, most), guard_share)
        inputs = sample_inputs(rng, takes, NUM_INPUTS)
        if takes != "integer":
            inputs.append([] if takes == "numbers" else "")
        elif pipeline.guard is not None:
            inputs.append(0)
        if tells(pipeline, inputs):
            return pipeline, inputs


def _draw(rng: random.Random, takes: Input, count: int, guard_share: float) -> Pipeline:
    shelf = SHELVES[takes]
    ends = (one(rng, shelf.ends),) if rng.random() < shelf.end_share else ()
    chosen: list[Stage] = []
    while len(chosen) < max(1, count - len(ends)):
        stage = draw_stage(rng, shelf)
        if all(_differ(stage, other) for other in chosen):
            chosen.append(stage)
    drawn = Pipeline(takes, (*chosen, *ends))
    return (
        Pipeline(takes, drawn.stages, draw_guard(rng, takes, drawn.stages[-1].result))
        if rng.random() < guard_share
        else drawn
    )


def tells(pipeline: Pipeline, inputs: list[Any]) -> bool:
    """Return whether the results differ, and dropping the guard or any stage but the end changes one."""
    results = [pipeline(value) for value in inputs]
    if all(result == results[0] for result in results[:NUM_INPUTS]):
        return False
    shorter = [Pipeline(pipeline.takes, pipeline.stages)] if pipeline.guard is not None else []
    for place, stage in enumerate(pipeline.stages):
        if stage.kind != "end":
            left = pipeline.stages[:place] + pipeline.stages[place + 1 :]
            shorter.append(Pipeline(pipeline.takes, left, pipeline.guard))
    return all([other(value) for value in inputs] != results for other in shorter)


def _differ(stage: Stage, other: Stage) -> bool:
    """Return whether two stages differ in more than a number."""
    return stage.key.translate(NO_DIGITS) != other.key.translate(NO_DIGITS)


def sample_inputs(rng: random.Random, takes: Input, count: int) -> list[Any]:
    """Draw different inputs of one kind."""
    if takes == "integer":
        return some(rng, range(-9, 25), count)
    if takes == "numbers":
        return [[whole(rng, -9, 12) for _ in range(whole(rng, 2, 6))] for _ in range(count)]
    return [_phrase(rng, whole(rng, 2, 4) if takes == "words" else whole(rng, 1, 3)) for _ in range(count)]


WORDS = (
    "stone",
    "Emma",
    "tea",
    "oxen",
    "s7",
    "Toast",
    "ox",
    "toes",
    "42",
    "taste",
    "so",
    "exit",
    "roof",
    "Next",
    "eat",
)


def _phrase(rng: random.Random, count: int) -> str:
    return " ".join(some(rng, WORDS, count))
