r"""mini-math: equations, sums, fractions and simple algebra with worked steps, the value in \boxed{}."""

from __future__ import annotations

import random
import re
from fractions import Fraction

from unmask.training.tasks.algebra import equations, fractions_, sums, values
from unmask.training.tasks.algebra.problem import solution
from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import one

NAME = "mini-math"
KINDS = (
    *(equations.linear, equations.linear, equations.bracket, equations.both_sides, equations.pair),
    *(sums.first_numbers, sums.odd_or_even, sums.between, sums.average),
    *(
        fractions_.add,
        fractions_.times,
        fractions_.simplify,
        fractions_.percent,
        fractions_.part_of,
    ),
    *(values.product, values.expression, values.expression),
    *(values.remainder, values.rectangle, values.power),
)
FRACTION = re.compile(r"(-?)\\[dt]?frac\{?(-?\d+)\}?\{?(\d+)\}?")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?")


def draw(rng: random.Random) -> Item:
    """Draw one problem in one of its wordings."""
    problem = one(rng, KINDS)(rng)
    return Item(NAME, problem.question, solution(rng, problem), problem.key, {"value": str(problem.value)})


def score(item: Item, text: str) -> Scored:
    """Compare the value of the last boxed expression with the true one."""
    extracted = last_boxed(text)
    found = None if extracted is None else value_of(extracted)
    return Scored(found is not None and found == Fraction(item.meta["value"]), extracted)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{...} whose braces close, or None if there is none."""
    _, opening, rest = text.rpartition("\\boxed{")
    depth = 1
    for place, letter in enumerate(rest if opening else ""):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return rest[:place]
    return None


def value_of(expression: str) -> Fraction | None:
    """Evaluate a simple expression, or return None for anything else."""
    plain = expression.rpartition("=")[2].replace("$", "").replace(" ", "").replace("\\!", "")
    plain = FRACTION.sub(r"\1\2/\3", plain)
    if not NUMBER.fullmatch(plain) or re.search(r"/0+$", plain):
        return None
    above, _, below = plain.partition("/")
    return Fraction(above) / Fraction(below or "1")


TASK = Task(NAME, draw, one_by_one(score))
