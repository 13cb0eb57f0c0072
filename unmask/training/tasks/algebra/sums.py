"""Sums of many numbers in a row, and averages."""

from __future__ import annotations

import random
from fractions import Fraction

from unmask.training.tasks.algebra.problem import Problem, multiply
from unmask.training.tasks.phrases import one, whole

COUNTS = (*range(3, 21), 30, 40, 50, 60, 70, 80, 90, 100, 100)


def first_numbers(rng: random.Random) -> Problem:
    """1 + 2 + ... + n."""
    count = one(rng, COUNTS)
    word = one(rng, ("natural numbers", "natural numbers", "positive integers", "whole numbers"))
    question = one(
        rng,
        (
            f"What is the sum of the first {count} {word}?",
            f"Find the sum of the first {count} {word}.",
            f"Add up the numbers from 1 to {count}.",
        ),
    )
    half, other = (count // 2, count + 1) if count % 2 == 0 else ((count + 1) // 2, count)
    steps = [
        one(
            rng,
            (
                "The sum of the first n numbers is n(n + 1) / 2.",
                "We use the formula n(n + 1) / 2.",
                "The formula is n(n + 1) / 2.",
            ),
        ),
        f"{one(rng, ('Here', 'With our n,', 'This is'))} {count} * {count + 1} / 2 = {other} * {half}.",
        f"{multiply(other, half)}.",
    ]
    return Problem(f"first {count}", question, steps, Fraction(other * half))


def odd_or_even(rng: random.Random) -> Problem:
    """The first n odd numbers, or the first n even ones."""
    count, kind = whole(rng, 3, 15), one(rng, ("odd", "even"))
    factor = count if kind == "odd" else count + 1
    formula = "n * n" if kind == "odd" else "n(n + 1)"
    question = one(
        rng,
        (
            f"What is the sum of the first {count} {kind} numbers?",
            f"Find the sum of the first {count} {kind} numbers.",
        ),
    )
    steps = [
        one(rng, (f"The sum of the first n {kind} numbers is {formula}.", f"The formula is {formula}.")),
        f"{multiply(count, factor)}.",
    ]
    return Problem(f"{kind} {count}", question, steps, Fraction(count * factor))


def between(rng: random.Random) -> Problem:
    """a + ... + b as the number of terms times their mean."""
    low, count = whole(rng, 2, 20), whole(rng, 3, 8)
    high = low + count - 1
    question = one(
        rng,
        (
            f"What is the sum of the numbers from {low} to {high}?",
            f"Add up all whole numbers from {low} to {high}.",
            f"Find the sum of the integers from {low} to {high}.",
        ),
    )
    ends = low + high
    left, right = (ends, count // 2) if count % 2 == 0 else (count, ends // 2)
    steps = [
        one(rng, (f"There are {high} - {low} + 1 = {count} numbers.", f"We add {count} numbers.")),
        one(
            rng,
            (f"The ends add up to {low} + {high} = {ends}.", f"First and last give {low} + {high} = {ends}."),
        ),
        f"The sum is {count} * {ends} / 2 = {multiply(left, right)}.",
    ]
    return Problem(f"between {low} {high}", question, steps, Fraction(left * right))


def average(rng: random.Random) -> Problem:
    """The mean of three to five numbers, always whole."""
    count = whole(rng, 3, 5)
    numbers = [whole(rng, 1, 20) for _ in range(count - 1)]
    numbers.append(whole(rng, 1, 4) * count + -sum(numbers) % count)
    total = sum(numbers)
    shown = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    question = one(rng, (f"What is the average of {shown}?", f"Find the mean of {shown}."))
    sums, running = [], numbers[0]
    for number in numbers[1:]:
        sums.append(f"{running} + {number} = {running + number}")
        running += number
    joined = ", ".join(sums)
    steps = [
        one(rng, (f"First add: {joined}.", f"The sum: {joined}.", f"We add up: {joined}.")),
        one(
            rng,
            (
                f"Divide by {count}: {total} / {count} = {total // count}.",
                f"There are {count} numbers, so {total} / {count} = {total // count}.",
            ),
        ),
    ]
    return Problem(f"average {sorted(numbers)}", question, steps, Fraction(total, count))
