"""A mathematics problem with its worked solution and its layout."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from unmask.training.tasks.phrases import one


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the steps of one solution, and its value under the name `name`."""

    key: str
    question: str
    steps: list[str]
    value: Fraction
    name: str = ""  # "x" in an equation


def boxed(value: Fraction) -> str:
    """Return the value as boxed LaTeX."""
    if value.denominator == 1:
        return f"\\boxed{{{value.numerator}}}"
    sign = "-" if value < 0 else ""
    return f"\\boxed{{{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}}}"


def solution(rng: random.Random, problem: Problem) -> str:
    """Write the steps in one layout, then the boxed value."""
    box = boxed(problem.value)
    if problem.name:
        last = one(rng, (f"So {problem.name} = {box}.", f"The solution is {problem.name} = {box}."))
    else:
        last = one(rng, (f"The answer is {box}.", f"So the answer is {box}.", f"The result is {box}."))
    between = "\n" if rng.random() < 0.6 else " "
    return f"{between.join(problem.steps)}\n{last}"


def multiply(left: int, right: int) -> str:
    """Write a product as a chain of equal terms, split up if both factors have several digits."""
    product, tens, units = left * right, right // 10 * 10, right % 10
    if left < 10 or tens == 0 or units == 0 or (left % 10 == 0 and right < 100):
        return f"{left} * {right} = {product}"
    parts = f"{left} * {tens} + {left} * {units}"
    return f"{left} * {right} = {parts} = {left * tens} + {left * units} = {product}"
