"""mini-recall: repeat pairs of a person and a thing, in any order."""

from __future__ import annotations

import random
import re

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import chance, listed, one, shuffled, some, whole
from unmask.training.tasks.words import NAMES
from unmask.training.tasks.world.facts import THINGS

NAME = "mini-recall"
FEWEST, MOST = 4, 8  # pairs
SAYS = ("{} has the {}.", "{} owns the {}.", "The {1} belongs to {0}.")
EVERYONE = ("List who has what, in any order.", "Who has what? Any order will do.")
LINE = re.compile(r"(\w+): (\w+)")


def draw(rng: random.Random) -> Item:
    """Draw pairs, and ask for all or for some of them."""
    count = whole(rng, FEWEST, MOST)
    pairs = dict(zip(some(rng, NAMES, count), some(rng, THINGS, count), strict=True))
    told = " ".join(one(rng, SAYS).format(name, thing) for name, thing in pairs.items())
    asked, asks = dict(pairs), one(rng, EVERYONE)
    if chance(rng, 0.4):
        names = some(rng, tuple(pairs), whole(rng, 2, count - 1))
        asked = {name: pairs[name] for name in names}
        asks = f"What do {listed(names)} have? Any order will do."
    answer = "\n".join(shuffled(rng, [f"{name}: {thing}" for name, thing in asked.items()]))
    everything = " ".join(sorted(f"{name}-{thing}" for name, thing in pairs.items()))
    return Item(NAME, f"{told} {asks}", answer, f"recall {everything}", {"pairs": asked})


def score(item: Item, text: str) -> Scored:
    """Accept the right pairs in any order, each once, and no others."""
    matches = [LINE.fullmatch(line.strip()) for line in text.strip().splitlines()]
    found = sorted(match.groups() for match in matches if match is not None)
    right = len(found) == len(matches) and found == sorted(item.meta["pairs"].items())
    return Scored(right, " ".join(map("-".join, found)) or None)


TASK = Task(NAME, draw, one_by_one(score))
