"""mini-countdown: reach a target with given numbers, each used once, in steps or as one expression."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import chance, listed, one, shuffled, whole

NAME = "mini-countdown"
LARGEST = 60
STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
STEPS = ("Write one step per line.", "Show every step on its own line.")
EXPRESSION = ("Write one expression.", "Answer with one expression.")
TOKEN = re.compile(r"\d+|[-+*/()]")
Value = tuple[int, str]  # a number and the expression that made it


def combine(left: int, sign: str, right: int) -> int | None:
    """Return a result, or None if it is not a whole number from 1 to LARGEST."""
    if sign == "/":
        value, rest = divmod(left, right) if right else (0, 1)
        return value if rest == 0 and 1 <= value <= LARGEST else None
    value = left + right if sign == "+" else left - right if sign == "-" else left * right
    return value if 1 <= value <= LARGEST else None


def reachable(numbers: tuple[int, ...]) -> Iterator[int]:
    """Yield every result of all numbers, each used once."""
    if len(numbers) == 1:
        yield numbers[0]
    for first in range(len(numbers)):
        for second in range(len(numbers)):
            if first != second:
                rest = tuple(n for place, n in enumerate(numbers) if place not in (first, second))
                for sign in "+-*/":
                    value = combine(numbers[first], sign, numbers[second])
                    if value is not None:
                        yield from reachable((*rest, value))


def draw(rng: random.Random) -> Item:
    """Draw numbers, and steps that use them all."""
    while True:
        numbers = [whole(rng, 1, 12) for _ in range(3 if chance(rng, 0.6) else 4)]
        found = _steps(rng, numbers)
        if found is not None:
            break
    steps, (target, expression) = found
    in_steps = chance(rng, 0.6)
    form = one(rng, STEPS if in_steps else EXPRESSION)
    shown = listed([str(number) for number in shuffled(rng, numbers)])
    asks = one(
        rng,
        (
            f"Use the numbers {shown} once each to make {target}.",
            f"Make {target} from {shown}, using each once.",
            f"Reach {target} with {shown}. Use each number once.",
        ),
    )
    answer = "\n".join(steps) if in_steps else f"{expression} = {target}"
    key = f"countdown {' '.join(map(str, sorted(numbers)))} to {target}"
    meta = {"numbers": sorted(numbers), "target": target, "steps": in_steps}
    return Item(NAME, f"{asks} {form}", answer, key, meta)


def _steps(rng: random.Random, numbers: list[int]) -> tuple[list[str], Value] | None:
    """Combine two values at random until one is left, or return None if that fails."""
    values: list[Value] = [(number, str(number)) for number in shuffled(rng, numbers)]
    steps = []
    while len(values) > 1:
        (left, one_side), (right, other_side) = values.pop(), values.pop()
        sign = one(rng, "++--**/")
        value = combine(left, sign, right)
        if value is None or value == left:  # a step that changes nothing is no puzzle
            return None
        steps.append(f"{left} {sign} {right} = {value}")
        expression = f"{_bracketed(one_side)} {sign} {_bracketed(other_side)}"
        values.insert(int(rng.random() * (len(values) + 1)), (value, expression))
    return steps, values[0]


def _bracketed(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def score(item: Item, text: str) -> Scored:
    """Accept every way to the target that uses each number once, in the form that the prompt asks for."""
    numbers, target = list(item.meta["numbers"]), item.meta["target"]
    right = _steps_reach(text, numbers, target) if item.meta["steps"] else _equals(text, numbers, target)
    return Scored(right, text.strip() or None)


def _steps_reach(text: str, numbers: list[int], target: int) -> bool:
    left = list(numbers)
    for line in text.strip().splitlines():
        match = STEP.fullmatch(line.strip())
        if match is None:
            return False
        first, sign, second, result = int(match[1]), match[2], int(match[3]), int(match[4])
        for number in (first, second):
            if number not in left:
                return False
            left.remove(number)
        if combine(first, sign, second) != result:
            return False
        left.append(result)
    return left == [target]


def _equals(text: str, numbers: list[int], target: int) -> bool:
    expression, _, result = text.strip().rpartition(" = ")
    tokens = TOKEN.findall(expression)
    if result != str(target) or "".join(tokens) != expression.replace(" ", ""):
        return False
    if sorted(int(token) for token in tokens if token.isdigit()) != numbers:
        return False
    value, rest = _sum(tokens)
    return value == target and not rest


def _sum(tokens: list[str]) -> tuple[int | None, list[str]]:
    value, rest = _product(tokens)
    while value is not None and rest and rest[0] in "+-":
        sign = rest[0]
        other, rest = _product(rest[1:])
        value = None if other is None else combine(value, sign, other)
    return value, rest


def _product(tokens: list[str]) -> tuple[int | None, list[str]]:
    value, rest = _atom(tokens)
    while value is not None and rest and rest[0] in "*/":
        sign = rest[0]
        other, rest = _atom(rest[1:])
        value = None if other is None else combine(value, sign, other)
    return value, rest


def _atom(tokens: list[str]) -> tuple[int | None, list[str]]:
    if tokens and tokens[0].isdigit():
        return int(tokens[0]), tokens[1:]
    if tokens and tokens[0] == "(":
        value, rest = _sum(tokens[1:])
        if rest and rest[0] == ")":
            return value, rest[1:]
    return None, tokens


TASK = Task(NAME, draw, one_by_one(score))
