"""Stories about what one, two or three people have."""

from __future__ import annotations

import random
from itertools import pairwise

from unmask.training.tasks.phrases import listed, one, shuffled, some, whole
from unmask.training.tasks.stories.events import happen
from unmask.training.tasks.stories.story import Story
from unmask.training.tasks.words import COUNTED, NAMES


def chain(rng: random.Random, story: Story) -> None:
    """One person, two to four events."""
    name, things = one(rng, NAMES), one(rng, COUNTED)
    happen(rng, story, name, things, whole(rng, 2, 4))
    story.question = one(
        rng,
        (
            f"How many {things} does {name} have now?",
            f"How many {things} does {name} have in the end?",
            f"With how many {things} does {name} end up?",
        ),
    )


def two_owners(rng: random.Random, story: Story) -> None:
    """Two people with their own events, then their total or their difference."""
    (first, second), things = some(rng, NAMES, 2), one(rng, COUNTED)
    mine, my_step = happen(rng, story, first, things, whole(rng, 1, 2))
    theirs, their_step = happen(rng, story, second, things, 1)
    if rng.random() < 0.5 or mine == theirs:
        story.key.append("total")
        story.question = one(
            rng,
            (
                f"How many {things} do they have together?",
                f"How many {things} do {first} and {second} have in all?",
            ),
        )
        said = (f"Together they have {{e}} {things}.", f"In all there are {{e}} {things}.")
        story.step((mine, "+", theirs), f"{things} in all", said, my_step, their_step)
        return
    story.key.append("difference")
    if mine < theirs:
        first, second, mine, theirs = second, first, theirs, mine
    story.question = f"How many more {things} does {first} have than {second}?"
    said = (f"{first} has {{e}} more {things}.", f"The difference is {{e}} {things}.")
    story.step((mine, "-", theirs), f"more {things}", said, my_step, their_step)


def relatives(rng: random.Random, story: Story) -> None:
    """Each person's number is relative to another's, in any order; the question asks for one or all."""
    names, things = some(rng, NAMES, whole(rng, 3, 4)), one(rng, COUNTED)
    have, place = whole(rng, 2, 12), None
    story.facts.append(f"{names[0]} has {have} {things}.")
    story.key.append(str(have))
    values, places = [have], []
    for before, name in pairwise(names):
        have = _relative(rng, story, (before, name, things), have, place)
        place = story.last
        values.append(have)
        places.append(place)
    story.facts = shuffled(rng, story.facts)
    if rng.random() < 0.5:
        story.key.append("last")
        story.question = f"How many {things} does {names[-1]} have?"
        return
    story.key.append("all")
    story.question = one(
        rng, (f"How many {things} do they have in all?", f"How many {things} are there in all?")
    )
    total, place = values[0], None
    for upto, value in enumerate(values[1:], 2):
        said = (f"{listed(names[:upto])} have {{e}} {things}.",)
        label = f"{things} of {upto}"
        total = story.step((total, "+", value), label, said, places[upto - 2], place)
        place = story.last


def _relative(
    rng: random.Random, story: Story, who: tuple[str, str, str], have: int, place: int | None
) -> int:
    before, name, things = who
    kind, by = one(rng, ("more", "fewer", "times")), whole(rng, 2, 9)
    if kind == "times":
        by = 2 + (by & 1)
        word = "twice" if by == 2 else "three times"
        story.facts.append(f"{name} has {word} as many {things} as {before}.")
        sign = "*"
    else:
        story.facts.append(f"{name} has {by} {kind} {things} than {before}.")
        sign = "+" if kind == "more" else "-"
    story.key.append(f"{sign}{by}")
    said = (f"{name} has {{e}} {things}.", f"So {name} has {{e}}.", f"For {name} that is {{e}} {things}.")
    return story.step((have, sign, by), f"{name}", said, place)
