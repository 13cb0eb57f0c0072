"""Two tasks for training only: reading off option letters, and the world told as text."""

from __future__ import annotations

import random

from unmask.training.tasks import options
from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import capital, one, shuffled, some
from unmask.training.tasks.words import NAMES
from unmask.training.tasks.world import facts
from unmask.training.tasks.world.scripts import SCRIPTS

POOLS = (
    *(facts.ANIMALS, facts.THINGS, facts.TOWNS, NAMES, facts.ANIMALS, facts.THINGS, NAMES),
    *(facts.PLACES, facts.FOODS, facts.COLOURS, facts.TIMES, facts.JOBS, facts.MATERIALS, facts.ROOMS),
    *(facts.INSTRUMENTS,),
)


ALL_SHARE = 0.6  # of `find` that asks for every letter: one letter a row is too thin a signal to learn from


def draw_find(rng: random.Random) -> Item:
    """Options as in the choice tasks, and a question for some of the letters or one of the contents."""
    count = 4 if rng.random() < 0.7 else 2
    if rng.random() < 0.8:
        choices = some(rng, one(rng, POOLS), count)
    else:
        choices = [one(rng, script.steps) for script in some(rng, SCRIPTS, count)]
    if rng.random() < ALL_SHARE:
        asks, answer = _asked_for_all(rng, choices)
    else:
        place = int(rng.random() * count)
        asks, answer = _asked(rng, options.LETTERS[place], choices[place])
    key = f"find {' '.join(choices)} {asks}"
    return Item("find", f"{asks}\n{options.lines(choices)}", answer, key, {"answer": answer})


def _asked_for_all(rng: random.Random, choices: list[str]) -> tuple[str, str]:
    """A question for the letters of all contents, in another order than the options have."""
    pairs = shuffled(rng, list(zip(options.LETTERS, choices, strict=False)))
    asks = f"Give the letters of {', '.join(choice for _, choice in pairs)}."
    # a space before every content, as in the options: at the start of a line it would be another piece
    return asks, "Here " + ", ".join(f"{choice} is {letter}" for letter, choice in pairs) + "."


def _asked(rng: random.Random, letter: str, choice: str) -> tuple[str, str]:
    """A question with its answer; the wording of the question names the form of the answer."""
    form = rng.random()
    if form < 0.4:
        return one(rng, (f"Which letter is {choice}?", f"Give the letter of {choice}.")), letter
    if form < 0.55:
        return f"Find {choice}.", f"Answer: {letter}"
    if form < 0.75:
        return f"Which option is {choice}?", one(rng, options.ENDINGS).format(letter)
    return one(rng, (f"What is {letter}?", f"What does {letter} say?")), choice


def draw_about(rng: random.Random) -> Item:
    """All facts about one subject in any order, or a whole script."""
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
    answer = " ".join(said)
    return Item("about", prompt, answer, f"about {subject}", {"answer": answer})


def score(item: Item, text: str) -> Scored:
    """The text itself, compared with the answer that was drawn."""
    return Scored(text.strip() == item.meta["answer"], text.strip())


FIND = Task("find", draw_find, one_by_one(score), training_only=True)
ABOUT = Task("about", draw_about, one_by_one(score), training_only=True)
