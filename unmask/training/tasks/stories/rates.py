"""Stories about several things at a rate each: shops, days of work, groups."""

from __future__ import annotations

import random

from unmask.training.tasks.phrases import one, shuffled, some, whole
from unmask.training.tasks.stories.story import Story
from unmask.training.tasks.words import COUNTED, HOLDERS, NAMES


def shop(rng: random.Random, story: Story) -> None:
    """Two or three purchases, then the total price or the change."""
    name, goods = one(rng, NAMES), some(rng, COUNTED, whole(rng, 2, 3))
    bought = []
    for things in goods:
        count, price = whole(rng, 2, 9), whole(rng, 2, 9)
        story.key.append(f"{count}*{price}")
        bought.append(f"{count} {things} for {price} dollars each")
        said = (
            f"The {things} cost {{e}} dollars.",
            f"For the {things}, {name} pays {{e}} dollars.",
            f"{count} {things} cost {{e}} dollars.",
        )
        story.step((count, "*", price), f"cost of {things}", said)
    story.facts.append(f"{name} buys {' and '.join(bought)}.")
    spent = _sum_up(story, f"{name} pays {{e}} dollars in all.", "The total is {e} dollars.")
    if rng.random() < 0.5:
        story.question = one(rng, (f"How much does {name} pay?", "How much is that in all?"))
        return
    purse = spent + whole(rng, 2, 20)
    story.key.append(f"{purse}-")
    story.facts.append(f"{name} has {purse} dollars.")
    story.facts = shuffled(rng, story.facts)
    story.question = one(
        rng, (f"How much money does {name} have left?", f"How many dollars does {name} keep?")
    )
    kept = (f"{name} keeps {{e}} dollars.", "That leaves {e} dollars.")
    story.step((purse, "-", spent), "money left", kept, story.last)


def work(rng: random.Random, story: Story) -> None:
    """A daily rate over some days, twice, then the total or what is missing to a goal."""
    name, things = one(rng, NAMES), one(rng, COUNTED)
    for where in some(rng, ("May", "June", "July"), 2):
        days, rate = whole(rng, 2, 9), whole(rng, 2, 9)
        story.key.append(f"{days}*{rate}")
        facts = (
            f"In {where}, {name} makes {rate} {things} a day for {days} days.",
            f"{name} makes {rate} {things} a day on {days} days in {where}.",
        )
        story.facts.append(one(rng, facts))
        said = (
            f"In {where}, {name} makes {{e}} {things}.",
            f"{days} days of {rate} are {{e}} {things}.",
        )
        story.step((days, "*", rate), f"{things} in {where}", said)
    made = _sum_up(story, f"{name} makes {{e}} {things} in all.", f"Together that is {{e}} {things}.")
    if rng.random() < 0.5:
        story.question = f"How many {things} does {name} make in all?"
        return
    goal = made + whole(rng, 2, 20)
    story.key.append(f"{goal}-")
    story.facts.append(f"{name} needs {goal} {things}.")
    story.question = one(
        rng, (f"How many {things} are missing?", f"How many more {things} does {name} need?")
    )
    said = (f"So {{e}} {things} are missing.", f"{name} needs {{e}} more {things}.")
    story.step((goal, "-", made), f"{things} missing", said, story.last)


def groups(rng: random.Random, story: Story) -> None:
    """Things from two kinds of holders are shared out equally."""
    name, things, holders = one(rng, NAMES), one(rng, COUNTED), some(rng, HOLDERS, 2)
    for holder in holders:
        count, each = whole(rng, 2, 6), whole(rng, 2, 9)
        story.key.append(f"{count}*{each}")
        story.facts.append(f"{name} has {count} {holder} with {each} {things} each.")
        said = (f"The {holder} hold {{e}} {things}.", f"{count} {holder} of {each} are {{e}} {things}.")
        story.step((count, "*", each), f"{things} in {holder}", said)
    total = _sum_up(story, f"In all there are {{e}} {things}.", f"{name} has {{e}} {things}.")
    if rng.random() < 0.4:
        lost = whole(rng, 2, 9)
        story.key.append(f"-{lost}")
        story.facts.append(f"{name} throws {lost} broken {things} away.")
        said = (f"Without the broken ones, {{e}} {things} are left.", f"{name} keeps {{e}} {things}.")
        total = story.step((total, "-", lost), f"{things} left", said, story.last)
    friends = one(rng, [n for n in range(2, 10) if total % n == 0] or [2])
    story.key.append(f"/{friends}")
    story.facts.append(f"{name} shares the {things} equally among {friends} friends.")
    story.question = one(
        rng, (f"How many {things} does each friend get?", f"How many {things} are there for each friend?")
    )
    said = (f"Each friend gets {{e}} {things}.", f"For each friend there are {{e}} {things}.")
    story.step((total, "/", friends), f"{things} for each", said, story.last)


def _sum_up(story: Story, *said: str) -> int:
    """Add up all steps so far, one after the other."""
    parts = list(story.steps)
    total, place = parts[0].value, 0
    for index, part in enumerate(parts[1:], 1):
        sentences = said if index == len(parts) - 1 else ("So far that is {e}.",)
        total = story.step((total, "+", part.value), "total", sentences, place, index)
        place = story.last
    return total
