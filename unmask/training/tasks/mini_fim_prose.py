"""mini-fim-prose: write the missing sentence of a story, so that the numbers before and after it agree.

The canvas holds the whole story. Every event that turns the number before the gap into the one after counts.
"""

from __future__ import annotations

import random
import re

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.mini_fim_code import keeps_both_sides
from unmask.training.tasks.phrases import chance, one, whole
from unmask.training.tasks.words import COUNTED, NAMES

NAME = "mini-fim-prose"
LARGEST = 40
GAINS, LOSSES = ("buys", "gets", "finds"), ("loses", "sells", "gives away")
EVENT = re.compile(rf"(?:Then )?(\w+) ({'|'.join(GAINS + LOSSES)}) (\d+) (\w+)\.")
STARTS = ("{} has {} {}.", "{} starts with {} {}.")
STATES = ("Now {} has {} {}.", "{} has {} {} now.")
ASKS = ("Complete the story.", "Write the missing sentence.", "Fill the gap in the story.")


def draw(rng: random.Random) -> Item:
    """Draw a story of two or three events, and leave out one of them."""
    name, thing = one(rng, NAMES), one(rng, COUNTED)
    count = whole(rng, 3, 20)
    sentences = [one(rng, STARTS).format(name, count, thing)]
    gap, events = 0, whole(rng, 2, 3)
    left_out, change, numbers = whole(rng, 1, events), 0, [count]
    for number in range(1, events + 1):
        step = _step(rng, count)
        if number == left_out:
            gap, change = len(sentences), step
        sentences.append(event(rng, name, step, thing))
        count += step
        numbers.append(count)
        sentences.append(one(rng, STATES).format(name, count, thing))
    parts = [sentence if place == 0 else f" {sentence}" for place, sentence in enumerate(sentences)]
    around = ["".join(parts[:gap]), "".join(parts[gap + 1 :])]
    key = f"fim {thing} {' '.join(map(str, numbers))} without {left_out}"
    meta = {"around": around, "name": name, "thing": thing, "change": change}
    return Item(NAME, one(rng, ASKS), "".join(parts), key, meta)


def _step(rng: random.Random, count: int) -> int:
    """Draw a gain or a loss that leaves a count from 1 to LARGEST."""
    while True:
        step = whole(rng, 1, 12) * (1 if chance(rng, 0.5) else -1)
        if 1 <= count + step <= LARGEST:
            return step


def event(rng: random.Random, name: str, step: int, thing: str) -> str:
    """Write a gain or a loss as a sentence."""
    verb = one(rng, GAINS if step > 0 else LOSSES)
    return f"{'Then ' if chance(rng, 0.4) else ''}{name} {verb} {abs(step)} {thing}."


def score(item: Item, text: str) -> Scored:
    """Accept every sentence that states an event with the right effect."""
    if not keeps_both_sides(item, text):
        return Scored(False, None)
    before, after = item.meta["around"]
    middle = text[len(before) : len(text) - len(after)].strip()
    match = EVENT.fullmatch(middle)
    if match is None:
        return Scored(False, middle)
    name, verb, number, thing = match.groups()
    change = int(number) if verb in GAINS else -int(number)
    wanted = (item.meta["name"], item.meta["thing"], item.meta["change"])
    return Scored((name, thing, change) == wanted, middle)


TASK = Task(NAME, draw, one_by_one(score))
