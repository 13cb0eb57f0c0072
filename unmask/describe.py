"""Read what users see about a class from its docstring, so that it is written only once.

The first paragraph says what the class does. The second paragraph says when to use it. The section
`Attributes:` has an entry for every field.
"""

from __future__ import annotations

import ast
import re
from importlib.resources import files
from inspect import cleandoc

SECTION = "Attributes:"
ENTRY = re.compile(r"    (\w+): (.*)")


def sentence(kind: type) -> str:
    """Return the first paragraph of a docstring, or "" if there is none."""
    return _paragraphs(kind)[0]


def usage(kind: type) -> str:
    """Return the paragraph that says when to use a class, or "" if there is none."""
    paragraphs = _paragraphs(kind)
    return paragraphs[1] if len(paragraphs) > 1 and not paragraphs[1].startswith(SECTION) else ""


def field_lines(kind: type) -> dict[str, str]:
    """Return the line about every field by name, including inherited fields."""
    lines: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        lines |= read_lines(base.__doc__)
    return lines


def read_lines(docstring: str | None) -> dict[str, str]:
    """Return the entries of the section `Attributes:` by name, each as one line."""
    lines: dict[str, str] = {}
    name = None
    _, _, section = cleandoc(docstring or "").partition(f"\n{SECTION}\n")
    for text in section.split("\n"):
        if entry := ENTRY.fullmatch(text):
            name = entry[1]
            lines[name] = entry[2].strip()
        elif name is not None and text.startswith(" "):
            lines[name] += f" {text.strip()}"
        elif text:  # another section
            break
    return lines


def source_lines(package: str, file: str, name: str) -> dict[str, str]:
    """Return the lines about the fields of a class without importing its module, which may need torch."""
    tree = ast.parse((files(package) / file).read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return read_lines(ast.get_docstring(found))


def _paragraphs(kind: type) -> list[str]:
    text = cleandoc(kind.__doc__ or "")
    # a dataclass without a docstring has its signature in __doc__
    written = not text.startswith(f"{kind.__name__}(")
    return [" ".join(part.split()) for part in text.split("\n\n")] if written else [""]
