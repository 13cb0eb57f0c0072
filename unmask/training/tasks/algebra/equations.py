"""Linear equations in one unknown, and pairs of sums and differences."""

from __future__ import annotations

import random
from fractions import Fraction

from unmask.training.tasks.algebra.problem import Problem
from unmask.training.tasks.phrases import one, whole

LETTERS = ("x", "x", "y", "n", "t")


def _ask(rng: random.Random, equation: str, letter: str) -> str:
    return one(
        rng,
        (
            f"Solve the equation: {equation}.",
            f"Solve the equation {equation}.",
            f"Solve for {letter}: {equation}.",
            f"Find {letter} if {equation}.",
            f"What is {letter} if {equation}?",
        ),
    )


def _move(rng: random.Random, left: str, right: int, amount: int) -> str:
    """Say in one of several ways that `amount` moves from the left side to the right."""
    verb, word, sign = ("Subtract", "from", "-") if amount > 0 else ("Add", "to", "+")
    size = abs(amount)
    work = f"{left} = {right} {sign} {size} = {right - amount}"
    return one(
        rng,
        (
            f"{verb} {size} {word} both sides: {work}.",
            f"We {verb.lower()} {size} {word} both sides and get {work}.",
            f"If we {verb.lower()} {size}, then {work}.",
        ),
    )


def _divide(rng: random.Random, by: int, right: int, letter: str) -> str:
    work = f"{letter} = {right} / {by} = {right // by}"
    return one(
        rng,
        (f"Divide both sides by {by}: {work}.", f"Then divide by {by}: {work}.", f"Now {work}."),
    )


def linear(rng: random.Random) -> Problem:
    """ax + b = c."""
    letter, factor, answer = one(rng, LETTERS), whole(rng, 2, 9), whole(rng, 1, 15)
    shift = whole(rng, 1, 20) * one(rng, (1, 1, -1))
    right = factor * answer + shift
    sign = "+" if shift > 0 else "-"
    equation = f"{factor}{letter} {sign} {abs(shift)} = {right}"
    product = factor * answer
    steps = [_move(rng, f"{factor}{letter}", right, shift), _divide(rng, factor, product, letter)]
    return Problem(
        f"linear {factor} {shift} {right}", _ask(rng, equation, letter), steps, Fraction(answer), letter
    )


def bracket(rng: random.Random) -> Problem:
    """a(x + b) = c."""
    letter, factor = one(rng, LETTERS), whole(rng, 2, 9)
    shift = whole(rng, 1, 12) * one(rng, (1, -1))
    inner = whole(rng, 2, 12) if shift < 0 else shift + whole(rng, 1, 12)
    right, answer = factor * inner, inner - shift
    sign = "+" if shift > 0 else "-"
    equation = f"{factor}({letter} {sign} {abs(shift)}) = {right}"
    inside = f"{letter} {sign} {abs(shift)}"
    work = f"{inside} = {right} / {factor} = {inner}"
    steps = [
        one(rng, (f"Divide both sides by {factor}: {work}.", f"First divide by {factor}: {work}.")),
        _move(rng, letter, inner, shift),
    ]
    return Problem(
        f"bracket {factor} {shift} {right}", _ask(rng, equation, letter), steps, Fraction(answer), letter
    )


def both_sides(rng: random.Random) -> Problem:
    """ax + b = cx + d."""
    letter, answer, small = one(rng, LETTERS), whole(rng, 1, 9), whole(rng, 1, 5)
    more, low = whole(rng, 2, 6), whole(rng, 1, 12)
    large, high = small + more, low + more * answer
    short = letter if small == 1 else f"{small}{letter}"
    equation = f"{large}{letter} + {low} = {short} + {high}"
    product = more * answer
    steps = [
        one(
            rng,
            (
                f"Subtract {short} from both sides: {more}{letter} + {low} = {high}.",
                f"We subtract {short} and get {more}{letter} + {low} = {high}.",
            ),
        ),
        _move(rng, f"{more}{letter}", high, low),
        _divide(rng, more, product, letter),
    ]
    key = f"both {large} {low} {small} {high}"
    return Problem(key, _ask(rng, equation, letter), steps, Fraction(answer), letter)


def pair(rng: random.Random) -> Problem:
    """x + y = s and x - y = d."""
    small, difference = whole(rng, 1, 15), whole(rng, 1, 12)
    large = small + difference
    total = small + large
    first, second = one(rng, (("x", "y"), ("a", "b"), ("m", "n")))
    wanted = one(rng, (first, second))
    add = f"2{first} = {total} + {difference} = {total + difference}"
    steps = [
        one(rng, (f"Add both equations: {add}.", f"We add them and get {add}.")),
        _divide(rng, 2, total + difference, first),
    ]
    if wanted == second:
        steps.append(f"Then {second} = {total} - {large} = {small}.")
    equations = f"{first} + {second} = {total} and {first} - {second} = {difference}"
    question = one(rng, (f"If {equations}, what is {wanted}?", f"Find {wanted} if {equations}."))
    key = f"pair {total} {difference} {wanted == first}"
    return Problem(key, question, steps, Fraction(large if wanted == first else small), wanted)
