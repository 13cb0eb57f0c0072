"""mini-hellaswag: choose what happens next in a short script."""

from __future__ import annotations

import random

from unmask.training.tasks import options
from unmask.training.tasks.item import Item, Task, one_by_one
from unmask.training.tasks.options import Question
from unmask.training.tasks.phrases import one, whole
from unmask.training.tasks.words import NAMES
from unmask.training.tasks.world.scripts import SCRIPTS, Script

NAME = "mini-hellaswag"
SHORT_SHARE = 0.25
ASKS = ("What does {} do next?", "What comes next?", "What happens next?")


def draw(rng: random.Random) -> Item:
    """One script cut off at one place."""
    script, name = one(rng, SCRIPTS), one(rng, NAMES)
    seen = whole(rng, 2, len(script.steps) - 1)
    start = max(0, seen - whole(rng, 1, 3))
    right, last = script.steps[seen], script.steps[seen - 1]
    text = f"{_told(rng, script, name, script.steps[start:seen])} {one(rng, ASKS).replace('{}', name)}"
    reasons = (
        f"Next, {name} {right}.",
        f"Then {name} {right}.",
        f"{name} {last}, and then {name} {right}.",
        f"After that, {name} {right}.",
    )
    choices = [right, *_wrong(rng, script, seen)]
    question = Question(f"{script.goal} {start}-{seen}", text, choices, reasons)
    return options.item(rng, NAME, question, SHORT_SHARE)


def _told(rng: random.Random, script: Script, name: str, steps: tuple[str, ...]) -> str:
    """The steps so far in one of several ways to tell them."""
    goal = one(rng, (f"{name} wants to {script.goal}. ", ""))
    join = one(rng, (f". Then {name} ", f". {name} ", " and then "))
    return f"{goal}{name} {join.join(steps)}."


def _wrong(rng: random.Random, script: Script, seen: int) -> list[str]:
    """Three steps that do not come next: earlier ones, later ones or ones of other scripts; no verb twice."""
    verbs = [script.steps[seen].split()[0]]
    chosen: list[str] = []
    while len(chosen) < 3:
        kind = rng.random()
        pool = script.steps[:seen] if kind < 0.3 else script.steps[seen + 1 :] if kind < 0.7 else ()
        step = one(rng, pool or one(rng, SCRIPTS).steps)
        if (verb := step.split()[0]) not in verbs:
            verbs.append(verb)
            chosen.append(step)
    return chosen


TASK = Task(NAME, draw, one_by_one(options.score))
