"""mini-winogrande: resolve a pronoun by a causal rule or a fact of the world."""

from __future__ import annotations

import random

from unmask.training.tasks import options
from unmask.training.tasks.item import Item, Task, one_by_one
from unmask.training.tasks.options import Question
from unmask.training.tasks.phrases import capital, one, some
from unmask.training.tasks.words import NAMES
from unmask.training.tasks.world import facts
from unmask.training.tasks.world.frames import PERSON_FRAMES, THING_FRAMES

NAME = "mini-winogrande"
SHORT_SHARE = 0.35
MEETINGS = ("The {a} met the {b}.", "The {a} and the {b} came by.", "{n} saw the {a} and the {b}.")


def draw(rng: random.Random) -> Item:
    """Draw one sentence with one pronoun."""
    kind = rng.random()
    question = _thing(rng) if kind < 0.4 else _person(rng) if kind < 0.75 else _animal(rng)
    return options.item(rng, NAME, question, SHORT_SHARE)


def _thing(rng: random.Random) -> Question:
    frame, pair = one(rng, THING_FRAMES), some(rng, facts.THINGS, 2)
    is_first = rng.random() < 0.5
    cause = one(rng, frame.first if is_first else frame.second)
    right, wrong = pair if is_first else (pair[1], pair[0])
    clause = frame.clause.replace("{a}", pair[0]).replace("{b}", pair[1])
    text = f"{_because(rng, clause, f'it {cause}')} What {cause}?"
    reasons = (f"The {right} {cause}.", f"It means the {right}.", f"It was the {right} that {cause}.")
    return Question(f"{clause} {cause}", text, [right, wrong], reasons)


def _person(rng: random.Random) -> Question:
    frame, pair = one(rng, PERSON_FRAMES), some(rng, NAMES, 2)
    is_first = rng.random() < 0.5
    cause = one(rng, frame.first if is_first else frame.second)
    right, wrong = pair if is_first else (pair[1], pair[0])
    clause = frame.clause.replace("{a}", pair[0]).replace("{b}", pair[1])
    text = f"{_because(rng, clause, f'they {cause}'.replace('they was', 'they were'))} Who {cause}?"
    reasons = (f"{right} {cause}.", f"They means {right}.", f"It was {right} who {cause}.")
    return Question(f"{clause} {cause}", text, [right, wrong], reasons)


def _because(rng: random.Random, clause: str, cause: str) -> str:
    if rng.random() < 0.3:
        return f"Because {cause}, {clause}."
    return f"{capital(clause)} {one(rng, ('because', 'since', 'as'))} {cause}."


def _animal(rng: random.Random) -> Question:
    """Draw two animals and a fact that is true of only one of them."""
    relation = one(rng, facts.ANIMAL_RELATIONS)
    right, wrong = some(rng, facts.ANIMALS, 2)
    while relation.facts[right] == relation.facts[wrong]:
        wrong = one(rng, facts.ANIMALS)
    value = relation.facts[right]
    did = {"home": f"lived near the {value}", "food": f"ate {value}", "colour": f"was {value}"}
    what = did.get(relation.name, f"woke at {value}")
    first, second = (right, wrong) if rng.random() < 0.5 else (wrong, right)
    text = one(rng, MEETINGS).replace("{a}", first).replace("{b}", second).replace("{n}", one(rng, NAMES))
    reasons = [capital(relation.say(form, right)) for form in relation.says]
    key = f"{' '.join(sorted((right, wrong)))} {what}"
    return Question(key, f"{text} It {what}. What {what}?", [right, wrong], reasons)


TASK = Task(NAME, draw, one_by_one(options.score))
