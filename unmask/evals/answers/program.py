"""Find the Python program in a text."""

from __future__ import annotations

import re
import warnings
from textwrap import dedent, indent

FENCE = re.compile(r"^[ \t]*```[ \t]*\w*[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
STATEMENT = re.compile(
    r"^(?:(?:async )?def \w|class \w|from [\w.]+ import |import \w|@\w|\w+ *= *[^=\s])", re.MULTILINE
)


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
    Of these readings, take the one that keeps most lines as Python.
    """
    body = body.strip("\n").rstrip()
    spaced = body.expandtabs(4)
    readings = (body, f"    {spaced.lstrip()}", indent(dedent(spaced), "    "))
    return start + max((_longest(start, reading) for reading in readings), key=lambda kept: kept.count("\n"))


def compiles(code: str) -> bool:
    """Return whether Python accepts the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a doubtful escape is not an error
        try:
            compile(code, "<answer>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return False
    return True


def _unfenced(text: str, name: str) -> str:
    """Return the code between the prose before and after it."""
    for start in STATEMENT.finditer(text):
        kept = _longest("", text[start.start() :])
        if defines(kept, name):
            return kept
    return text


def _longest(start: str, code: str) -> str:
    """Return the most first lines of the code that are Python after `start`."""
    lines = code.splitlines(keepends=True)
    for count in range(len(lines), 0, -1):
        kept = "".join(lines[:count])
        if compiles(start + kept):
            return kept if kept.endswith("\n") else f"{kept}\n"
    return ""
