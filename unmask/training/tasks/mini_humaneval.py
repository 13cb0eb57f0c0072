"""mini-humaneval: complete a function or write a program that a sentence asks for; hidden tests judge it."""

from __future__ import annotations

import random
from typing import Any

from unmask.training.tasks.code import describe
from unmask.training.tasks.code.bodies import body
from unmask.training.tasks.code.check import score_many
from unmask.training.tasks.code.named import draw_program
from unmask.training.tasks.code.pipeline import Pipeline, draw_pipeline
from unmask.training.tasks.item import Item, Task
from unmask.training.tasks.phrases import one

NAME = "mini-humaneval"
FUNCTIONS = (
    "solve",
    "process",
    "compute",
    "convert",
    "apply",
    "change",
    "work",
    "transform",
    "run",
    "handle",
)
PARAMETERS = {
    "numbers": ("numbers", "values", "items"),
    "text": ("text", "s", "string"),
    "words": ("text", "s", "line"),
    "integer": ("n", "number", "value"),
}
PROGRAM = ("Write a Python program to", "Write a python program to", "Write a Python function to")


def draw(rng: random.Random) -> Item:
    """Draw one function in one of its spellings."""
    kind = rng.random()
    if kind < 0.1:
        return _named(rng)
    pipeline, inputs = draw_pipeline(rng, 2, 4, guard_share=0.35)
    name, parameter = one(rng, FUNCTIONS), one(rng, PARAMETERS[pipeline.takes])
    tests = hidden_tests(pipeline, inputs)
    spoken = describe.phrases(rng, pipeline)
    code = body(rng, pipeline, parameter)
    if kind < 0.25:
        takes = describe.INPUT_WORDS[pipeline.takes]
        prompt = f"Write a Python program for {takes}: {describe.clause(rng, spoken, pipeline.guard)}."
        meta = {"completes": False, "entry": "", "tests": tests}
        return Item(NAME, prompt, f"def {name}({parameter}):\n{code}", pipeline.key, meta)
    words = describe.commands(rng, spoken, pipeline.guard)
    prompt = f'def {name}({parameter}):\n    """{words}"""'
    return Item(NAME, prompt, code, pipeline.key, {"completes": True, "entry": name, "tests": tests})


def _named(rng: random.Random) -> Item:
    program, asks, text = draw_program(rng)
    meta = {"completes": False, "entry": "", "tests": [list(test) for test in program.tests]}
    return Item(NAME, f"{one(rng, PROGRAM)} {asks}.", text, f"program {program.names[0]}", meta)


def hidden_tests(pipeline: Pipeline, inputs: list[Any]) -> list[list[str]]:
    """Return each input with the expected result, as Python source."""
    return [[repr(value), repr(pipeline(value))] for value in inputs]


TASK = Task(NAME, draw, score_many)
