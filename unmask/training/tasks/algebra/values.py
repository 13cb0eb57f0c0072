"""Products, values of expressions, remainders, powers and rectangles."""

from __future__ import annotations

import random
from fractions import Fraction

from unmask.training.tasks.algebra.problem import Problem, multiply
from unmask.training.tasks.phrases import one, whole


def product(rng: random.Random) -> Problem:
    """Two factors of two digits."""
    left, right = whole(rng, 11, 39), whole(rng, 11, 19)
    question = one(
        rng, (f"What is {left} * {right}?", f"What is {left} times {right}?", f"Multiply {left} by {right}.")
    )
    steps = [
        one(rng, (f"We split {right}", f"Take {right} apart")) + f" into {right // 10 * 10} and {right % 10}."
        if right % 10
        else f"{right} has no ones.",
        f"{multiply(left, right)}.",
    ]
    return Problem(f"product {left} {right}", question, steps, Fraction(left * right))


def expression(rng: random.Random) -> Problem:
    """ax + b, a(x + b) or ax + by for given numbers."""
    factor, x, shift, y = whole(rng, 2, 9), whole(rng, 2, 12), whole(rng, 1, 15), whole(rng, 2, 9)
    kind = int(rng.random() * 3)
    if kind == 0:
        shown, value = f"{factor}x + {shift}", factor * x + shift
        work = [f"{factor} * {x} = {factor * x}.", f"{factor * x} + {shift} = {value}."]
    elif kind == 1:
        shown, value = f"{factor}(x + {shift})", factor * (x + shift)
        work = [f"{x} + {shift} = {x + shift}.", f"{multiply(x + shift, factor)}."]
    else:
        shown, value = f"{factor}x + {shift}y", factor * x + shift * y
        work = [f"{factor} * {x} = {factor * x}.", f"{shift} * {y} = {shift * y}."]
        if rng.random() < 0.5:
            work.reverse()
        work.append(f"{factor * x} + {shift * y} = {value}.")
    given = f"x = {x} and y = {y}" if kind == 2 else f"x = {x}"
    question = one(
        rng,
        (
            f"What is the value of {shown} when {given}?",
            f"What is {shown} if {given}?",
            f"Evaluate {shown} for {given}.",
        ),
    )
    lead = one(rng, (f"Put in {given}.", f"We know that {given}.", ""))
    return Problem(f"value {shown} {given}", question, [lead, *work] if lead else work, Fraction(value))


def remainder(rng: random.Random) -> Problem:
    """The remainder of a division."""
    divisor, times, rest = whole(rng, 3, 12), whole(rng, 2, 12), whole(rng, 1, 11)
    rest %= divisor
    number = divisor * times + rest
    question = one(
        rng,
        (
            f"What is the remainder when {number} is divided by {divisor}?",
            f"Find the remainder of {number} divided by {divisor}.",
        ),
    )
    steps = [
        one(rng, (f"{divisor} goes {times} times:", f"We take {divisor} {times} times:"))
        + f" {divisor} * {times} = {divisor * times}.",
        one(rng, ("That leaves", "The rest is")) + f" {number} - {divisor * times} = {rest}.",
    ]
    return Problem(f"remainder {number} {divisor}", question, steps, Fraction(rest))


def rectangle(rng: random.Random) -> Problem:
    """The area or the perimeter of a rectangle."""
    long, wide = whole(rng, 3, 20), whole(rng, 2, 9)
    wanted = one(rng, ("area", "perimeter"))
    sides = one(rng, (f"sides {long} and {wide}", f"length {long} and width {wide}"))
    question = one(
        rng,
        (
            f"What is the {wanted} of a rectangle with {sides}?",
            f"Find the {wanted} of a rectangle with {sides}.",
        ),
    )
    if wanted == "area":
        steps = [
            one(rng, ("The area is length times width.", "Multiply the sides.")),
            f"{multiply(long, wide)}.",
        ]
        value = long * wide
    else:
        value = 2 * (long + wide)
        steps = [
            one(rng, ("Add the sides:", "Two sides make")) + f" {long} + {wide} = {long + wide}.",
            one(rng, ("Double it:", "All four make")) + f" 2 * {long + wide} = {value}.",
        ]
    return Problem(f"{wanted} {long} {wide}", question, steps, Fraction(value))


def power(rng: random.Random) -> Problem:
    """A small power plus or minus a number."""
    base, exponent = one(
        rng, ((2, 3), (2, 4), (2, 5), (2, 6), (3, 3), (3, 4), (4, 3), (5, 3), (6, 2), (7, 2), (8, 2))
    )
    shift, sign = whole(rng, 1, 20), one(rng, ("+", "-"))
    result = base**exponent
    value = result + shift if sign == "+" else result - shift
    question = one(
        rng, (f"What is {base}^{exponent} {sign} {shift}?", f"Evaluate {base}^{exponent} {sign} {shift}.")
    )
    factors = " * ".join([str(base)] * exponent)
    steps = [
        one(rng, (f"{base}^{exponent} = {factors} = {result}.", f"The power is {factors} = {result}.")),
        f"{result} {sign} {shift} = {value}.",
    ]
    return Problem(f"power {base} {exponent} {sign} {shift}", question, steps, Fraction(value))
