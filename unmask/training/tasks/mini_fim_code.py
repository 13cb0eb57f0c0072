"""mini-fim-code: write the missing lines of a function; the lines before and after them are given.

The canvas holds the whole function. All of it but the gap is given, and hidden tests judge the whole.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from unmask.training.tasks.code import check, describe
from unmask.training.tasks.code.bodies import body
from unmask.training.tasks.code.pipeline import draw_pipeline
from unmask.training.tasks.item import Item, Scored, Task
from unmask.training.tasks.mini_humaneval import FUNCTIONS, PARAMETERS, hidden_tests
from unmask.training.tasks.phrases import one, whole

NAME = "mini-fim-code"
FEWEST_LINES = 3  # lines of a function's body
ASKS = (
    "Fill the gap in a function that can",
    "Complete a function to",
    "Write the missing lines of a function to",
)


def draw(rng: random.Random) -> Item:
    """Draw a function, and one or two lines of its body to leave out, but not the last."""
    while True:
        pipeline, inputs = draw_pipeline(rng, 3, 4, guard_share=0.35)
        name, parameter = one(rng, FUNCTIONS), one(rng, PARAMETERS[pipeline.takes])
        lines = f"def {name}({parameter}):\n{body(rng, pipeline, parameter)}".splitlines(keepends=True)
        if len(lines) > FEWEST_LINES:
            break
    first = whole(rng, 1, len(lines) - 2)
    last = min(first + whole(rng, 1, 2), len(lines) - 1)
    spoken = [f"take {describe.INPUT_WORDS[pipeline.takes]}", *describe.phrases(rng, pipeline)]
    prompt = f"{one(rng, ASKS)} {describe.clause(rng, spoken, pipeline.guard)}."
    meta = {
        "completes": False,
        "entry": name,
        "tests": hidden_tests(pipeline, inputs),
        "around": ["".join(lines[:first]), "".join(lines[last:])],
    }
    return Item(NAME, prompt, "".join(lines), pipeline.key, meta)


def score_many(items: Sequence[Item], texts: Sequence[str]) -> list[Scored]:
    """Run the tests of every function whose given lines are unchanged."""
    scored = check.score_many(items, texts)
    return [
        one if keeps_both_sides(item, text) else Scored(False, None)
        for item, text, one in zip(items, texts, scored, strict=True)
    ]


def keeps_both_sides(item: Item, text: str) -> bool:
    """Return whether a text begins and ends as given, with something in between."""
    before, after = item.meta["around"]
    return text.startswith(before) and text.endswith(after) and len(text) > len(before) + len(after)


TASK = Task(NAME, draw, score_many)
