"""mini-seating: seat four people in a row so that every constraint holds."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import permutations

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import chance, one, shuffled, some
from unmask.training.tasks.words import NAMES

NAME = "mini-seating"
SEATS = 4
MOST_SOLUTIONS = 2
Constraint = tuple[str, str, str]  # a kind, a person, and another person or a seat
SAYS = {
    "seat": ("{} sits in seat {}.", "Seat {1} is for {0}."),
    "not seat": ("{} does not sit in seat {}.", "Seat {1} is not for {0}."),
    "left of": ("{} sits left of {}.", "{1} sits right of {0}."),
    "next to": ("{} sits next to {}.", "{1} sits next to {0}."),
    "not next to": ("{} does not sit next to {}.", "{1} does not sit next to {0}."),
}
ASKS = ("Who sits where?", "Find a seat for everyone.", "Give everyone a seat.")
FORMS = {"rows": ("List the seats in order.",), "any": ("List the people in any order.",)}
LINES = {"rows": "Seat {seat}: {name}", "any": "{name}: seat {seat}"}
READ = {"rows": re.compile(r"Seat (\d): (\w+)"), "any": re.compile(r"(\w+): seat (\d)")}


def holds(constraint: Sequence[str], order: Sequence[str]) -> bool:
    """Return whether an order of people, from seat 1 on, meets a constraint."""
    kind, person, other = constraint
    place = order.index(person)
    if kind in ("seat", "not seat"):
        return (place + 1 == int(other)) == (kind == "seat")
    gap = order.index(other) - place
    return gap > 0 if kind == "left of" else (abs(gap) == 1) == (kind == "next to")


def solutions(people: Sequence[str], constraints: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return every order that meets all constraints."""
    return [order for order in permutations(people) if all(holds(one, order) for one in constraints)]


def draw(rng: random.Random) -> Item:
    """Draw an order, and constraints that leave it and at most one other."""
    people = some(rng, NAMES, SEATS)
    constraints: list[Constraint] = []
    left = list(permutations(people))
    while len(left) > MOST_SOLUTIONS:
        added = _constraint(rng, people)
        fewer = [order for order in left if holds(added, order)]
        if len(fewer) < len(left):
            constraints.append(added)
            left = fewer
    order = one(rng, left)
    form = "rows" if chance(rng, 0.5) else "any"
    said = " ".join(one(rng, SAYS[kind]).format(person, other) for kind, person, other in constraints)
    names = ", ".join(shuffled(rng, people))
    prompt = f"{names} sit in a row of {SEATS} seats. {said} {one(rng, ASKS)} {one(rng, FORMS[form])}"
    lines = [LINES[form].format(seat=seat, name=name) for seat, name in enumerate(order, 1)]
    answer = "\n".join(lines if form == "rows" else shuffled(rng, lines))
    key = f"seating {' '.join(sorted(people))}: {'; '.join(sorted(' '.join(c) for c in constraints))}"
    return Item(
        NAME,
        prompt,
        answer,
        key,
        {"people": people, "constraints": list(map(list, constraints)), "form": form},
    )


def _constraint(rng: random.Random, people: Sequence[str]) -> Constraint:
    """Draw a constraint; it holds for the people in their given order."""
    while True:
        first, second = some(rng, people, 2)
        kind = one(rng, tuple(SAYS))
        drawn = (kind, first, str(people.index(first) + 1) if "seat" in kind else second)
        if kind == "not seat":
            drawn = (kind, first, str(1 + int(rng.random() * SEATS)))
        if holds(drawn, people):
            return drawn


def score(item: Item, text: str) -> Scored:
    """Accept every order that meets the constraints, in the form that the prompt asks for."""
    form, people = item.meta["form"], item.meta["people"]
    matches = [READ[form].fullmatch(line.strip()) for line in text.strip().splitlines()]
    seat, person = (1, 2) if form == "rows" else (2, 1)
    pairs = [(str(match[seat]), str(match[person])) for match in matches if match]
    if len(pairs) != len(matches) or len(pairs) != SEATS:
        return Scored(False, None)
    if form == "rows" and pairs != sorted(pairs):
        return Scored(False, None)
    seats = dict(pairs)
    order = tuple(seats.get(str(number), "") for number in range(1, SEATS + 1))
    right = sorted(order) == sorted(people) and all(holds(c, order) for c in item.meta["constraints"])
    return Scored(right, " ".join(order))


TASK = Task(NAME, draw, one_by_one(score))
