"""Reading an answer takes time in proportion to its length, whatever the text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import thread_time

import pytest

from unmask.evals.answers.boxed import boxed
from unmask.evals.answers.equivalence import tidied
from unmask.evals.answers.latex import released_answers, released_match, rewritten
from unmask.evals.answers.letter import final_letter
from unmask.evals.answers.number import final_number, released_number
from unmask.evals.answers.program import complete, find_code
from unmask.evals.tasks.math import final_answer

READERS: dict[str, Callable[[str], object]] = {
    "boxed": boxed,
    "tidied": tidied,
    "rewritten": rewritten,
    "released answers": released_answers,
    "released match": partial(released_match, "a question", "5"),
    "final number": final_number,
    "released number": released_number,
    "final letter": partial(final_letter, letters="ABCD"),
    "final answer": final_answer,
}
TEXTS: dict[str, Callable[[int], str]] = {
    "answers": lambda n: "the answer is " * n,
    "empty answers": lambda n: "the answer is. " * n,
    "marks": lambda n: "#### " * n,
    "letters of words": lambda n: "the answer is **an** " * n,
    "unclosed boxes": lambda n: r"\boxed{" * n,
    "nested boxes": lambda n: r"\boxed{" * n + "}" * n,
    "boxes without braces": lambda n: r"\boxed5" * n,
    "braces": lambda n: "{" * n + r"\boxed{5}" * n,
    "groups of digits": lambda n: "1" + ",000" * n + ",",
    "digits": lambda n: "1." + "0" * 4 * n + "1",
    "fraction": lambda n: r"\frac{" + "7" * 4 * n + "}{" + "3" * 4 * n + "}",
    "spaces": lambda n: "the answer is 5" + " " * 8 * n + "x",
    "spaces in a unit": lambda n: r"5\text{" + " " * 8 * n + "x",
    "spaces after a power": lambda n: "5^" + " " * 8 * n + "x",
    "dollars": lambda n: "the answer is $$. " * n,
    "thin spaces": lambda n: "1" + r"\," * 4 * n + "x",
    "options": lambda n: "option " * n,
    "articles": lambda n: "a" + " " * 8 * n + "!",
    "newlines": lambda n: "\n" * 8 * n,
    "commands": lambda n: r"\frac\alpha" * n,
}
CODES: dict[str, Callable[[int], str]] = {
    "good lines, then a broken one, then good ones": lambda n: "x = 1\n" * n + "def f(: \n" + "x = 1\n" * n,
    "broken lines": lambda n: "def f(:\n" * n,
    "decorators": lambda n: "@f\n" * n + "def f",
    "prose": lambda n: "def f(x):\n    return x\n" + "This doesn't run.\n" * n,
    "imports before a broken function": lambda n: "import os\n" * n + "def f(x):\n return (\n",
    "an open fence": lambda n: "```" + " " * 8 * n + "x y",
    "open fences": lambda n: "```python\n" * n,
    "statements in prose": lambda n: "f = 5 apples\n" * n,
    "continued lines": lambda n: "def f(): \\\n" * n,
}
CODE_READERS: dict[str, Callable[[str], object]] = {
    "find code": partial(find_code, name="f"),
    "complete": partial(complete, "def f(x):\n"),
}


def seconds(read: Callable[[str], object], text: str) -> float:
    """Return the processor time of a reading."""
    began = thread_time()
    read(text)
    return thread_time() - began


def check_growth(read: Callable[[str], object], text: Callable[[int], str], size: int) -> None:
    """Check that a text four times as long takes about four times as long; sixteen would be quadratic.

    A busy machine may disturb one measurement, but not three.
    """
    growth = []
    for _ in range(3):
        longer = seconds(read, text(4 * size))
        if longer < 0.02:  # too short to say anything
            return
        growth.append(longer / seconds(read, text(size)))
        if growth[-1] < 10:
            return
    pytest.fail(f"four times the text took {growth} times as long")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("reader", READERS)
def test_reading_is_linear_in_the_length_of_a_text(reader: str, text: str) -> None:
    check_growth(READERS[reader], TEXTS[text], 1024)


@pytest.mark.parametrize("text", CODES)
@pytest.mark.parametrize("reader", CODE_READERS)
def test_finding_a_program_is_linear_in_the_length_of_a_text(reader: str, text: str) -> None:
    check_growth(CODE_READERS[reader], CODES[text], 200)  # as many lines as compilations
