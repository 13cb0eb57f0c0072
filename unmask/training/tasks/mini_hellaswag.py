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
SHORT_SHARE = 0.35
ASKS = ("What does {} do next?", "What comes next?", "What happens next?")
LATER_SHARE = 0.3  # share of questions that ask for the step after next
ASKS_LATER = ("What does {} do after the next step?", "What comes after the next step?")


def draw(rng: random.Random) -> Item:
    """Draw one script, cut off at one step."""
    script, name, ahead = one(rng, SCRIPTS), one(rng, NAMES), int(rng.random() < LATER_SHARE)
    seen = whole(rng, 2, len(script.steps) - 1 - ahead)
    start = max(0, seen - whole(rng, 1, 3))
    asks = one(rng, ASKS_LATER if ahead else ASKS).replace("{}", name)
    text = f"{_told(rng, script, name, script.steps[start:seen])} {asks}"
    reasons = _reasons(name, script.steps[seen - 1 : seen + 1 + ahead])
    choices = [script.steps[seen + ahead], *_wrong(rng, script, seen + ahead)]
    question = Question(f"{script.goal} {start}-{seen + ahead}", text, choices, reasons)
    return options.item(rng, NAME, question, SHORT_SHARE)


def _reasons(name: str, steps: tuple[str, ...]) -> tuple[str, ...]:
    """Return phrasings of what follows the first of the steps."""
    told = f", then {name} ".join(steps[1:])
    return (
        f"Next, {name} {told}.",
        f"Then {name} {told}.",
        f"{name} {steps[0]}, and then {name} {told}.",
        f"After that, {name} {told}.",
    )


def _told(rng: random.Random, script: Script, name: str, steps: tuple[str, ...]) -> str:
    """Tell the steps so far in one of several ways."""
    goal = one(rng, (f"{name} wants to {script.goal}. ", ""))
    join = one(rng, (f". Then {name} ", f". {name} ", " and then "))
    return f"{goal}{name} {join.join(steps)}."


def _wrong(rng: random.Random, script: Script, seen: int) -> list[str]:
    """Draw three wrong steps: earlier, later or from other scripts; no verb twice."""
    verbs = [script.steps[seen].split()[0]]
    chosen: list[str] = []
    while len(chosen) < 3:
        kind = rng.random()
        pool = script.steps[:seen] if kind < 0.22 else script.steps[seen + 1 :] if kind < 0.7 else ()
        step = one(rng, pool or one(rng, SCRIPTS).steps)
        if (verb := step.split()[0]) not in verbs:
            verbs.append(verb)
            chosen.append(step)
    return chosen


TASK = Task(NAME, draw, one_by_one(options.score))
