"""mini-gsm8k: word problems of two to four steps, worked in words, ending with the number."""

from __future__ import annotations

import random
import re

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import one, whole
from unmask.training.tasks.stories import owners, rates
from unmask.training.tasks.stories.story import Story, worked
from unmask.training.tasks.words import NAMES

NAME = "mini-gsm8k"
KINDS = (
    *(owners.chain, owners.two_owners, owners.relatives),
    *(rates.shop, rates.work, rates.groups),
)
MOST_STEPS = 4
CALCULATION = ("Show only the calculation.", "Write only the calculation.")
EXPLANATION = ("", "", " Explain your steps.", " Think step by step.")
NUMBER = re.compile(r"(?:####|answer is:?)\s*\$?(-?\d+)")


def draw(rng: random.Random) -> Item:
    """Draw one story in one of its wordings."""
    while True:
        kind = one(rng, KINDS)
        story = Story(key=[kind.__name__])
        kind(rng, story)
        if story.possible and 2 <= len(story.steps) <= MOST_STEPS:
            break
    if rng.random() < 0.2:
        _add_noise(rng, story)
    calculation_only = rng.random() < 0.25
    form = f" {one(rng, CALCULATION)}" if calculation_only else one(rng, EXPLANATION)
    prompt = f"{' '.join(story.facts)} {story.question}{form}"
    value = story.steps[-1].value
    return Item(NAME, prompt, worked(rng, story, calculation_only), " ".join(story.key), {"value": value})


def _add_noise(rng: random.Random, story: Story) -> None:
    """Add a number that no step needs."""
    who, number = one(rng, NAMES), whole(rng, 2, 20)
    noise = (
        f"{who} is {number} years old.",
        f"The market opens at {whole(rng, 5, 11)}.",
        f"{who} walks {number} miles.",
    )
    story.facts.insert(int(rng.random() * (len(story.facts) + 1)), one(rng, noise))


def score(item: Item, text: str) -> Scored:
    """Compare the last number that the text calls its answer with the true one."""
    found = NUMBER.findall(text)
    extracted = found[-1] if found else None
    return Scored(extracted is not None and int(extracted) == item.meta["value"], extracted)


TASK = Task(NAME, draw, one_by_one(score))
