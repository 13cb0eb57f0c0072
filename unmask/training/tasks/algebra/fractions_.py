"""Fractions and percentages."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from unmask.training.tasks.algebra.problem import Problem
from unmask.training.tasks.phrases import one, whole

PAIRS = [(b, d) for b in range(2, 11) for d in range(2, 11) if math.lcm(b, d) <= 20]


def add(rng: random.Random) -> Problem:
    """a/b + c/d or a/b - c/d, by the common denominator."""
    below, other = one(rng, PAIRS)
    left, right = Fraction(whole(rng, 1, below - 1), below), Fraction(whole(rng, 1, other - 1), other)
    sign = "+" if left == right else one(rng, ("+", "-"))
    if sign == "-" and left < right:
        left, right = right, left
    value = left + right if sign == "+" else left - right
    common = math.lcm(left.denominator, right.denominator)
    tops = left.numerator * common // left.denominator, right.numerator * common // right.denominator
    top = tops[0] + tops[1] if sign == "+" else tops[0] - tops[1]
    question = one(
        rng,
        (
            f"What is {left} {sign} {right}?",
            f"Work out {left} {sign} {right}.",
            f"Find {left} {sign} {right}.",
        ),
    )
    steps = [one(rng, (f"The common denominator is {common}.", f"Both become parts of {common}."))]
    parts = [f"{left} = {tops[0]}/{common}", f"{right} = {tops[1]}/{common}"]
    if rng.random() < 0.5:
        parts.reverse()
    steps.append(f"{parts[0]} and {parts[1]}.")
    steps.append(_reduced(f"{tops[0]}/{common} {sign} {tops[1]}/{common}", top, common))
    return Problem(f"add {left} {sign} {right}", question, steps, value)


def times(rng: random.Random) -> Problem:
    """A product of two fractions."""
    below, other = whole(rng, 2, 9), whole(rng, 2, 9)
    left, right = Fraction(whole(rng, 1, below - 1), below), Fraction(whole(rng, 1, other - 1), other)
    top, bottom = left.numerator * right.numerator, left.denominator * right.denominator
    question = one(
        rng, (f"What is {left} * {right}?", f"Multiply {left} by {right}.", f"Find {left} times {right}.")
    )
    tops = f"{left.numerator} * {right.numerator} = {top}"
    bottoms = f"{left.denominator} * {right.denominator} = {bottom}"
    steps = [
        one(rng, (f"Top: {tops}. Bottom: {bottoms}.", f"Bottom: {bottoms}. Top: {tops}.")),
        _reduced("The product", top, bottom),
    ]
    return Problem(f"times {left} {right}", question, steps, left * right)


def _reduced(start: str, top: int, bottom: int) -> str:
    """Write the step that names a fraction and reduces it if possible."""
    verb = "is" if start[0] == "T" else "="
    divisor = math.gcd(top, bottom)
    if divisor == 1:
        return f"{start} {verb} {top}/{bottom}."
    return f"{start} {verb} {top}/{bottom} = {Fraction(top, bottom)}."


def simplify(rng: random.Random) -> Problem:
    """A fraction in lowest terms."""
    divisor, bottom = whole(rng, 2, 9), whole(rng, 2, 12)
    top = whole(rng, 1, bottom - 1)
    while math.gcd(top, bottom) > 1:
        top -= 1
    question = one(
        rng,
        (
            f"Simplify {top * divisor}/{bottom * divisor}.",
            f"Write {top * divisor}/{bottom * divisor} in lowest terms.",
        ),
    )
    divisions = [
        f"{top * divisor} / {divisor} = {top}",
        f"{bottom * divisor} / {divisor} = {bottom}",
    ]
    steps = [
        one(rng, (f"Both can be divided by {divisor}.", f"The common factor is {divisor}.")),
        f"{divisions[0]} and {divisions[1]}.",
    ]
    return Problem(f"simplify {top * divisor} {bottom * divisor}", question, steps, Fraction(top, bottom))


def percent(rng: random.Random) -> Problem:
    """A percentage of a whole number, by way of five per cent."""
    times, each = whole(rng, 1, 19), whole(rng, 1, 9)
    rate, amount, value = times * 5, each * 20, times * each
    question = one(rng, (f"What is {rate}% of {amount}?", f"Find {rate}% of {amount}."))
    steps = [
        one(rng, (f"5% of {amount} is {amount} / 20 = {each}.", f"5% is {amount} / 20 = {each}.")),
        f"{rate}% is {times} times that: {times} * {each} = {value}.",
    ]
    return Problem(f"percent {rate} {amount}", question, steps, Fraction(value))


def part_of(rng: random.Random) -> Problem:
    """A fraction of a whole number."""
    bottom = whole(rng, 2, 9)
    top, each = whole(rng, 1, bottom - 1), whole(rng, 2, 12)
    while math.gcd(top, bottom) > 1:
        top -= 1
    amount, value = bottom * each, top * each
    division = f"{amount} / {bottom} = {each}"
    question = one(rng, (f"What is {top}/{bottom} of {amount}?", f"Find {top}/{bottom} of {amount}."))
    steps = [
        one(rng, (f"1/{bottom} of {amount} is {division}.", f"One part is {division}.")),
        one(rng, (f"{top} parts are {top} * {each} = {value}.", f"We need {top} * {each} = {value}.")),
    ]
    return Problem(f"part {top} {bottom} {amount}", question, steps, Fraction(value))
