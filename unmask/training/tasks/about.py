"""A task for training only: texts about the invented world."""

from __future__ import annotations

import random

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import capital, one, shuffled
from unmask.training.tasks.words import NAMES
from unmask.training.tasks.world import facts
from unmask.training.tasks.world.scripts import SCRIPTS


def draw(rng: random.Random) -> Item:
    """Draw all facts about one subject in any order, or a whole script."""
    if rng.random() < 0.25:
        script, name = one(rng, SCRIPTS), one(rng, NAMES)
        told = one(rng, (f". Then {name} ", f". {name} ")).join(script.steps)
        answer = f"{name} {told}."
        return Item(
            "about", f"How does {name} {script.goal}?", answer, f"about {script.goal}", {"answer": answer}
        )
    relation = one(rng, facts.RELATIONS)
    subject = one(rng, tuple(relation.facts))
    known = [other for other in facts.RELATIONS if subject in other.facts]
    said = [capital(other.say(one(rng, other.says), subject)) for other in shuffled(rng, known)]
    called = relation.subject.replace("{}", subject)
    prompt = one(rng, (f"Tell me about {called}.", f"What do you know about {called}?"))
    if subject in facts.AGES:
        said.append(f"{subject} is {facts.AGES[subject]}.")
    answer = " ".join(said)
    return Item("about", prompt, answer, f"about {subject}", {"answer": answer})


def score(item: Item, text: str) -> Scored:
    """Compare the text with the drawn answer."""
    return Scored(text.strip() == item.meta["answer"], text.strip())


TASK = Task("about", draw, one_by_one(score), training_only=True)
