"""Gold answers, and wrong ones, as a model might put them."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import dedent
from typing import TypeAlias

from unmask.evals import Sample
from unmask.evals.tasks.mbpp import called_name

Say: TypeAlias = Callable[[Sample], str]
NUMBERS: dict[str, Callable[[str], str]] = {
    "boxed": lambda number: f"First 3 + 4 = 7. So it is \\boxed{{{number}}}.",
    "boxed with commas": lambda number: f"The final answer is $\\boxed{{{int(number):,}}}$ dollars, not 12.",
    "phrase": lambda number: f"We add 3 and 4.\nThe final answer is {number}.",
    "money": lambda number: f"The final answer is ${int(number):,}.00.".replace("$-", "-$"),
    "bold, with a unit": lambda number: f"The answer is: **{number}** apples",
    "percent": lambda number: f"the answer is {number}%",
    "marked": lambda number: f"5-2 is 3\n#### {number}",
    "last number": lambda number: f"It is 5-2, and then {int(number):,}.",
}
FORMULAS: dict[str, Callable[[str], str]] = {
    "boxed": lambda answer: f"Thus \\boxed{{{answer}}}.",
    "boxed in a phrase": lambda answer: f"The final answer is: $\\boxed{{{answer}}}$. Done.",
    "dollars": lambda answer: f"It follows.\nThe final answer is ${answer}$.",
    "bare": lambda answer: f"The answer is {answer}.",
}
LETTERS: dict[str, Callable[[str, str], str]] = {
    "bare": lambda letter, text: letter,
    "lower case": lambda letter, text: letter.lower(),
    "bold": lambda letter, text: f"**{letter}**",
    "with its text": lambda letter, text: f"{letter}. {text}",
    "in brackets with its text": lambda letter, text: f"({letter}) {text}",
    "phrase": lambda letter, text: f"The final answer is ({letter}).",
    "phrase with its text": lambda letter, text: f"The answer is {letter}. {text}",
    "phrase in brackets with its text": lambda letter, text: f"The final answer is ({letter}) {text}",
    "boxed": lambda letter, text: f"A man sees (A) and (B). So \\boxed{{\\text{{{letter}}}}}.",
    "colon": lambda letter, text: f"Answer: {letter}",
    "reasoned": lambda letter, text: f"A man may choose (B). In the end, the correct answer is **{letter}**.",
}
LETTERS_RELEASED = {name: LETTERS[name] for name in ("bare",)}


def whole_function(sample: Sample) -> str:
    return str(sample.meta["prompt"]) + sample.gold


FUNCTIONS: dict[str, Say] = {
    "body": lambda sample: sample.gold,
    "stripped body": lambda sample: sample.gold.strip(),
    "unindented body": lambda sample: dedent(sample.gold),
    "body with tabs": lambda sample: dedent(sample.gold).replace("    ", "\t"),
    "body and prose": lambda sample: f"{sample.gold}\nThis works because it's short.",
    "fenced body": lambda sample: f"```python\n{sample.gold}```",
    "fenced": lambda sample: f"```python\n{whole_function(sample)}```",
    "two fences": lambda sample: (
        f"Here:\n\n```py\n{whole_function(sample)}```\nSo:\n```\nprint(1)\n```\nBye."
    ),
    "unfenced with prose": lambda sample: f"Sure! It's here.\n{whole_function(sample)}\nThat's it.",
}
FUNCTIONS_RELEASED = {name: FUNCTIONS[name] for name in ("body", "fenced body", "fenced")}
PROGRAMS: dict[str, Say] = {
    "fenced": lambda sample: f"Here:\n```python\n{sample.gold}\n```\nTry it:\n```python\nprint(nothing)\n```",
    "unfenced": lambda sample: sample.gold,
    "unfenced with prose": lambda sample: f"Well, from the start.\n\n{sample.gold}\n\nThat's it.",
}
PROGRAMS_RELEASED = {name: PROGRAMS[name] for name in ("fenced", "unfenced")}


def empty_body(sample: Sample) -> str:
    return "    return None\n"


def empty_program(sample: Sample) -> str:
    return f"```python\ndef {called_name(sample.meta['tests'])}(*given):\n    return None\n```"


def next_formula(answer: str) -> str:
    """The answer with its first number one higher; one without numbers becomes 7."""
    found = re.search(r"\d+", answer)
    if found is None:
        return "7"
    return f"{answer[: found.start()]}{int(found.group()) + 1}{answer[found.end() :]}"


def option_texts(sample: Sample) -> list[str]:
    return next(sample.meta[name] for name in ("choices", "endings", "names") if name in sample.meta)


def next_letter(sample: Sample) -> str:
    count = len(option_texts(sample))
    return "ABCD"[("ABCD".index(sample.gold) + 1) % count]
