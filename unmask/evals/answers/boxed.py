"""The contents of LaTeX boxes."""

from __future__ import annotations

import re
from collections.abc import Mapping

BOX = re.compile(r"\\(?:boxed|fbox)\s*")
DEEPEST = 8
BRACE = re.compile(r"[{}]")
TOKEN = re.compile(r"\\[a-zA-Z]+|[^\s{}$]+")


def boxed(text: str) -> list[str]:
    """Return the contents of the boxes in order, an inner box after its outer one.

    Skip unclosed boxes, and boxes inside `DEEPEST` others, so that the contents stay linear in the text.
    """
    contents = []
    closing = _closing_braces(text)
    around: list[int] = []  # ends of the boxes around this place
    for start in BOX.finditer(text):
        while around and around[-1] <= start.start():
            around.pop()
        span = _span(text, start.end(), closing) if len(around) < DEEPEST else None
        if span is not None:
            contents.append(text[slice(*span)].strip())
            around.append(span[1])
    return contents


def _span(text: str, start: int, closing: Mapping[int, int]) -> tuple[int, int] | None:
    """Return where the content of a box begins and ends, or None if it has none."""
    if text.startswith("{", start):
        return (start + 1, closing[start]) if start in closing else None
    token = TOKEN.match(text, start)  # "\boxed 5"
    return token.span() if token else None


def _closing_braces(text: str) -> dict[int, int]:
    """Map the place of each opening brace to that of its closing brace."""
    closing, opened = {}, []
    for brace in BRACE.finditer(text):
        place = brace.start()
        if text[place - 1] == "\\" and text[place - 2] != "\\":
            continue  # escaped
        if brace.group() == "{":
            opened.append(place)
        elif opened:
            closing[opened.pop()] = place
    return closing
