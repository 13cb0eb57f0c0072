"""The contents of LaTeX boxes."""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\s*")
TOKEN = re.compile(r"\\[a-zA-Z]+|[^\s{}$]+")


def boxed(text: str) -> list[str]:
    """Return the contents of the boxes in order, an inner box after its outer one; skip unclosed ones."""
    contents = []
    for start in BOX.finditer(text):
        content = _content(text, start.end())
        if content is not None:
            contents.append(content.strip())
    return contents


def _content(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        token = TOKEN.match(text, start)  # "\boxed 5"
        return token.group() if token else None
    depth = 0
    for place in range(start, len(text)):
        escaped = text[place - 1] == "\\" and text[place - 2] != "\\"
        if text[place] == "{" and not escaped:
            depth += 1
        elif text[place] == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return text[start + 1 : place]
    return None
