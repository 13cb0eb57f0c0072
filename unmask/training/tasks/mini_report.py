"""mini-report: a report of several paragraphs on the facts in the prompt, with sums; 150 to 300 tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import chance, listed, one, shuffled, some, whole
from unmask.training.tasks.words import COUNTED, NAMES
from unmask.training.tasks.world.facts import COLOURS, JOBS, PLACES, THINGS

NAME = "mini-report"
PEOPLE = (3, 5)  # fewest and most
ASKS = ("Write a report.", "Write a report about them.", "Report on everyone.")
OPENINGS = ("This report is about {}.", "Here is the report about {}.", "We report on {}.")
SAYS: Mapping[str, tuple[str, ...]] = {  # wordings of the sentences of a paragraph, which may be in any order
    "job": ("{name} is a {job}.", "{name} works as a {job}."),
    "place": ("{name} lives by the {place}.", "The home of {name} is by the {place}."),
    "thing": ("{name} keeps a {colour} {thing}.", "There is a {colour} {thing} in the house of {name}."),
    "sum": (
        "{name} has {first} {counted} at home and {second} in the shop, so {name} has {total} {counted}.",
        "With {first} {counted} at home and {second} in the shop, {name} has {total} {counted}.",
    ),
}
TOLD = (
    "{name}: {job}, {place}, {colour} {thing}, {first} and {second} {counted}.",
    "{name}: {job}, {place}, {first} and {second} {counted}, {colour} {thing}.",
)
CLOSINGS = (
    "The most {counted} belong to {name}, who has {total}.",
    "{name} has the most {counted}, {total} in all.",
)


def draw(rng: random.Random) -> Item:
    """Draw people with their facts, and one of the many reports about them."""
    counted = one(rng, COUNTED)
    people = _people(rng, counted)
    told = "\n".join(one(rng, TOLD).format(**person) for person in people)
    key = f"report {' | '.join(sorted(TOLD[0].format(**person) for person in people))}"
    return Item(NAME, f"{told}\n{one(rng, ASKS)}", _written(rng, people), key, {"people": people})


def _people(rng: random.Random, counted: str) -> list[dict[str, Any]]:
    """Draw people whose sums differ."""
    while True:
        names = some(rng, NAMES, whole(rng, *PEOPLE))
        drawn = [some(rng, group, len(names)) for group in (JOBS, PLACES, THINGS, COLOURS)]
        pairs = [(whole(rng, 2, 20), whole(rng, 2, 20)) for _ in names]
        if len({first + second for first, second in pairs}) == len(names):
            break
    return [
        {
            **dict(zip(("name", "job", "place", "thing", "colour"), facts, strict=True)),
            **{"counted": counted, "first": first, "second": second, "total": first + second},
        }
        for *facts, (first, second) in zip(names, *drawn, pairs, strict=True)
    ]


def _written(rng: random.Random, people: Sequence[Mapping[str, Any]]) -> str:
    """Write a report: paragraphs and their sentences in any order, in any of their wordings."""
    paragraphs = [one(rng, OPENINGS).format(listed([person["name"] for person in people]))]
    for person in shuffled(rng, people) if chance(rng, 0.5) else people:
        kinds = shuffled(rng, tuple(SAYS))
        paragraphs.append(" ".join(one(rng, SAYS[kind]).format(**person) for kind in kinds))
    most = max(people, key=lambda person: int(person["total"]))
    paragraphs.append(one(rng, CLOSINGS).format(**most))
    return "\n\n".join(paragraphs)


def score(item: Item, text: str) -> Scored:
    """Accept every report whose paragraphs say all facts, each once, and nothing else."""
    people = item.meta["people"]
    opening, *middle = text.strip().split("\n\n")
    if len(middle) != len(people) + 1:
        return Scored(False, None)
    most = max(people, key=lambda person: int(person["total"]))
    parts = [
        opening in {words.format(listed([person["name"] for person in people])) for words in OPENINGS},
        middle[-1] in {words.format(**most) for words in CLOSINGS},
    ]
    names = [_described(paragraph, people) for paragraph in middle[:-1]]
    right = all(parts) and None not in names and len(set(names)) == len(people)
    return Scored(right, " ".join(name or "?" for name in names))


def _described(paragraph: str, people: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name of the person whose facts a paragraph says, each once, or None."""
    said = [f"{sentence}." for sentence in paragraph.removesuffix(".").split(". ")]
    for person in people:
        kinds = [
            kind
            for sentence in said
            for kind, wordings in SAYS.items()
            if sentence in {words.format(**person) for words in wordings}
        ]
        if sorted(kinds) == sorted(SAYS) and len(said) == len(SAYS):
            return str(person["name"])
    return None


TASK = Task(NAME, draw, one_by_one(score))
