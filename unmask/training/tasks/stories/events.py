"""Events that change how many things someone has, each of one or two steps."""

from __future__ import annotations

import random
from collections.abc import Callable

from unmask.training.tasks.phrases import one, whole
from unmask.training.tasks.stories.story import Story
from unmask.training.tasks.words import HOLDERS

Event = Callable[[random.Random, Story, str, str, int, "int | None"], int]


def gain(rng: random.Random, story: Story, name: str, things: str, have: int, need: int | None) -> int:
    """Add a number of things."""
    more = whole(rng, 2, 20)
    story.key.append(f"+{more}")
    how = one(rng, ("buys", "finds", "gets", "makes"))
    story.facts.append(
        one(rng, (f"{name} {how} {more} more {things}.", f"Then {name} {how} {more} {things}."))
    )
    said = (
        f"{name} {how} {more}, so {name} has {{e}} {things}.",
        f"With {more} more, {name} has {{e}} {things}.",
        f"Now there are {{e}} {things}.",
    )
    return story.step((have, "+", more), f"{things} with {more} more", said, need)


def loss(rng: random.Random, story: Story, name: str, things: str, have: int, need: int | None) -> int:
    """Take some things away."""
    fewer = whole(rng, 2, 20)
    story.key.append(f"-{fewer}")
    how = one(rng, ("loses", "sells", "uses", "gives away"))
    story.facts.append(one(rng, (f"{name} {how} {fewer} {things}.", f"Then {name} {how} {fewer} of them.")))
    said = (
        f"{name} {how} {fewer}, so {{e}} {things} are left.",
        f"That leaves {{e}} {things}.",
        f"Without {fewer} of them, {name} has {{e}} {things}.",
    )
    return story.step((have, "-", fewer), f"{things} left", said, need)


def boxes(rng: random.Random, story: Story, name: str, things: str, have: int, need: int | None) -> int:
    """Add several boxes of things: a product, which can be worked out at any time, and a sum."""
    count, each, holders = whole(rng, 2, 6), whole(rng, 2, 9), one(rng, HOLDERS)
    story.key.append(f"+{count}*{each}")
    facts = (
        f"{name} buys {count} {holders} with {each} {things} each.",
        f"Then {name} gets {count} {holders} of {each} {things}.",
    )
    story.facts.append(one(rng, facts))
    said = (
        f"The {holders} hold {{e}} {things}.",
        f"{count} {holders} of {each} are {{e}} {things}.",
        f"In the {holders} there are {{e}} {things}.",
    )
    inside = story.step((count, "*", each), f"{things} in {holders}", said)
    both = (
        f"With the {holders}, {name} has {{e}} {things}.",
        f"Together with the {holders} that is {{e}} {things}.",
    )
    return story.step((have, "+", inside), f"{things} with the {holders}", both, need, story.last)


def twice(rng: random.Random, story: Story, name: str, things: str, have: int, need: int | None) -> int:
    """Double or triple the things."""
    factor, verb = one(rng, ((2, "doubles"), (3, "triples")))
    story.key.append(f"*{factor}")
    story.facts.append(f"Then {name} {verb} the number of {things}.")
    said = (f"{name} {verb} this to {{e}} {things}.", f"{factor} times as many are {{e}} {things}.")
    return story.step((have, "*", factor), f"{things} times {factor}", said, need)


def halve(rng: random.Random, story: Story, name: str, things: str, have: int, need: int | None) -> int:
    """Keep half or a third."""
    parts, share, start = one(rng, ((2, "half", "Half"), (3, "a third", "One third")))
    story.key.append(f"/{parts}")
    story.facts.append(f"{name} keeps {share} of the {things}.")
    said = (f"{name} keeps {share}, which is {{e}} {things}.", f"{start} of them is {{e}} {things}.")
    return story.step((have, "/", parts), f"{things} kept", said, need)


EVENTS: tuple[Event, ...] = (gain, gain, loss, loss, boxes, twice, halve)


def begin(rng: random.Random, story: Story, name: str, things: str) -> int:
    """Say how many things someone has at first."""
    have = whole(rng, 2, 20)
    story.key.append(str(have))
    facts = (f"{name} has {have} {things}.", f"{name} starts with {have} {things}.")
    story.facts.append(one(rng, facts))
    return have


def happen(rng: random.Random, story: Story, name: str, things: str, count: int) -> tuple[int, int | None]:
    """Return what someone has after some events, and the step that states it."""
    have, place = begin(rng, story, name, things), None
    for _ in range(count):
        have = one(rng, EVENTS)(rng, story, name, things, have, place)
        place = story.last
    return have, place
