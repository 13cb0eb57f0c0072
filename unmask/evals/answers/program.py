"""Find the Python program in a text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from textwrap import dedent, indent

FENCE = re.compile(r"^[ \t]*```[ \t]*(?:\w+[ \t]*)?\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
STATEMENT = re.compile(
    r"^(?:(?:async )?def \w|class \w|from [\w.]+ import |import \w|@\w|\w+ *= *[^=\s])", re.MULTILINE
)
MOST_TRIES = 200  # compilations in the search for the code in a text
LONG = 100  # longer code is not tried with every number of lines


def find_code(text: str, name: str) -> str:
    """Return the fenced block that defines `name`, else the first block, else the code in the text."""
    blocks: list[str] = FENCE.findall(text)
    for block in blocks:
        if defines(block, name):
            return dedent(block)
    if blocks:
        return blocks[0]
    if not defines(text, name):
        return text
    return _unfenced(dedent(text), name)


def defines(code: str, name: str) -> bool:
    """Return whether the code has a function (or a name bound to one) called `name`."""
    function = rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*="
    return re.search(function, code, re.MULTILINE) is not None


def complete(start: str, body: str) -> str:
    """Complete `start`, a function that ends with its docstring, with a body from a text.

    The body may have lost the indentation of its first line or of all lines, use tabs, or end in prose.
    Use the reading that keeps the most lines as Python.
    """
    body = body.strip("\n").rstrip()
    spaced = body.expandtabs(4)
    readings = (body, f"    {spaced.lstrip()}", indent(dedent(spaced), "    "))
    return start + max(
        (_longest(start, reading, iter(range(MOST_TRIES))) for reading in readings),
        key=lambda kept: kept.count("\n"),
    )


def compiles(code: str) -> bool:
    """Return whether Python accepts the code."""
    return _error_line(code) is None


def _error_line(code: str) -> int | None:
    """Return the line of the first error that Python finds, 0 if it names none, or None if it accepts all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubtful escape is not an error
        try:
            compile(code, "<answer>", "exec", dont_inherit=True)
        except SyntaxError as error:
            return error.lineno or 0
        except (ValueError, MemoryError, RecursionError):
            return 0
    return None


def _unfenced(text: str, name: str) -> str:
    """Return the code between the prose before and after it."""
    tries = iter(range(MOST_TRIES))
    for start in STATEMENT.finditer(text):
        if next(tries, None) is None:
            break
        kept = _longest("", text[start.start() :], tries)
        if defines(kept, name):
            return kept
    return text


def _longest(start: str, code: str, tries: Iterator[int]) -> str:
    """Return as many of the code's first lines as are Python after `start`.

    Drop the last line of short code until it is Python; cut long code at the line of the error. Give up when
    there are no more `tries`.
    """
    lines = code.splitlines(keepends=True)
    count, before = len(lines), start.count("\n")
    for _ in tries:
        kept = "".join(lines[:count])
        error_line = _error_line(start + kept)
        if error_line is None and kept:
            return kept if kept.endswith("\n") else f"{kept}\n"
        count -= 1
        if len(lines) > LONG and error_line:
            count = min(count, error_line - before)
        if count < 1:
            break
    return ""
