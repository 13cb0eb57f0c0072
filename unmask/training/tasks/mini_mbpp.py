"""mini-mbpp: write a function from a sentence and one assert; some constants appear only in the assert."""

from __future__ import annotations

import random
from typing import Any

from unmask.training.tasks.code import describe, stages
from unmask.training.tasks.code.bodies import body
from unmask.training.tasks.code.check import score_many
from unmask.training.tasks.code.guards import Input
from unmask.training.tasks.code.pipeline import (
    NUM_INPUTS,
    SHELVES,
    Pipeline,
    draw_pipeline,
    draw_stage,
    sample_inputs,
    tells,
)
from unmask.training.tasks.item import Item, Task
from unmask.training.tasks.mini_humaneval import FUNCTIONS, PARAMETERS, hidden_tests
from unmask.training.tasks.phrases import one

NAME = "mini-mbpp"
HIDDEN_SHARE = 0.06
ASKS = ("Write a function to", "Write a Python function to", "Write a function that can")
UNKNOWN = "a fixed number"
CONSTANTS = range(2, 10)
HIDING: dict[
    Input, tuple[stages.Family, ...]
] = {  # constants that can be inferred from an input and its output
    "numbers": stages.NUMBER_FAMILIES[3:6],
    "integer": stages.INTEGER_FAMILIES[:3],
}


def draw(rng: random.Random) -> Item:
    """Draw one function in one of its spellings."""
    if rng.random() < HIDDEN_SHARE:
        return _with_hidden_constant(rng)
    pipeline, inputs = draw_pipeline(rng, 2, 3, guard_share=0.1)
    return _item(rng, pipeline, inputs, {})


def _with_hidden_constant(rng: random.Random) -> Item:
    """Draw a function with a constant that only the assert reveals."""
    takes: Input = one(rng, ("numbers", "integer"))
    while True:
        family, place = one(rng, HIDING[takes]), int(rng.random() * 2)
        other = draw_stage(rng, SHELVES[takes])
        inputs = sample_inputs(rng, takes, NUM_INPUTS)
        made = [
            Pipeline(takes, (stage, other) if place == 0 else (other, stage))
            for stage in map(family, CONSTANTS)
        ]
        results = [pipeline(inputs[0]) for pipeline in made]
        index = int(rng.random() * len(made))
        if results.count(results[index]) == 1 and tells(made[index], inputs):
            return _item(rng, made[index], inputs, {place: family(UNKNOWN).says[0]})


def _item(rng: random.Random, pipeline: Pipeline, inputs: list[Any], said: dict[int, str]) -> Item:
    """Make an item whose assert shows the first input."""
    name, parameter = one(rng, FUNCTIONS), one(rng, PARAMETERS[pipeline.takes])
    spoken = [f"take {describe.INPUT_WORDS[pipeline.takes]}", *describe.phrases(rng, pipeline, said)]
    clause = describe.clause(rng, spoken, pipeline.guard)
    example = f"assert {name}({inputs[0]!r}) == {pipeline(inputs[0])!r}"
    answer = f"def {name}({parameter}):\n{body(rng, pipeline, parameter)}"
    meta = {"completes": False, "entry": name, "tests": hidden_tests(pipeline, inputs)}
    return Item(NAME, f"{one(rng, ASKS)} {clause}.\n{example}", answer, pipeline.key, meta)


TASK = Task(NAME, draw, score_many)
