"""Gaps in a text, and the syntax for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.errors import FieldError

OPENING = re.compile(r"(\\*)\[\[gap")
REST = re.compile(r" (\d+)(?:-(\d+))?\]\]")


@dataclass(frozen=True, slots=True)
class Gap:
    """Tokens to fill in: exactly `length`, or between `min` and `max` if the model ends the gap early.

    Attributes:
        length: Exactly this many tokens; None: between min and max.
        min: Least number of tokens, with max.
        max: Most tokens; None: exactly `length`.
    """

    length: int | None = None
    min: int = 0
    max: int | None = None

    def __post_init__(self) -> None:
        if (self.length is None) == (self.max is None):
            raise FieldError("gap", self, "must have either a length or a max")
        if self.length is not None and self.min:
            raise FieldError("gap", self, "must not have both a min and a length", "give min and max")
        low, high = self.bounds
        if not (isinstance(low, int) and isinstance(high, int)):
            raise FieldError("gap", self, "must have whole numbers of tokens")
        if high < 1:
            raise FieldError("gap", self, "must have room for at least 1 token")
        if not 0 <= low <= high:
            raise FieldError("gap", self, f"must have a minimum from 0 to its maximum, {high}")

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest number of tokens."""
        if self.max is not None:
            return self.min, self.max
        assert self.length is not None
        return self.length, self.length


def read_gaps(text: str | Sequence[str | Gap]) -> list[str | Gap]:
    """Return the non-empty parts of a text, given as a string or as parts; raise if none of them is a gap."""
    if not isinstance(text, (str, list, tuple)):
        raise FieldError("text", text, "must be a string or a list of strings and Gaps")
    parts = parse_gaps(text) if isinstance(text, str) else list(text)
    for part in parts:
        if not isinstance(part, (str, Gap)):
            raise FieldError("text", part, "must hold strings and Gaps only")
    if not any(isinstance(part, Gap) for part in parts):
        remedy = "write one as [[gap 8]], or use generate to continue a text"
        raise FieldError("text", text, "must have a gap", remedy)
    return [part for part in parts if part != ""]


def parse_gaps(text: str) -> list[str | Gap]:
    r"""Split a text at its gaps, written "[[gap 8]]" or "[[gap 2-8]]".

    A backslash before "[[gap" makes it literal; two backslashes are a backslash and a gap.
    """
    parts: list[str | Gap] = []
    pieces: list[str] = []  # parts of the text since the last gap
    at = 0
    while opening := OPENING.search(text, at):
        slashes, literal = divmod(len(opening[1]), 2)
        before = text[at : opening.start()] + "\\" * slashes
        at = opening.end()
        if literal:
            pieces += [before, "[[gap"]
            continue
        rest = REST.match(text, at)
        if rest is None:
            raise FieldError(
                "text",
                text[opening.start() : at + 8],
                "must hold gaps of the form [[gap 8]] or [[gap 2-8]]",
                r"write \[[gap for the characters themselves",
            )
        parts += ["".join([*pieces, before]), _gap(rest)]
        pieces = []
        at = rest.end()
    return [*parts, "".join([*pieces, text[at:]])]


def _gap(rest: re.Match[str]) -> Gap:
    """Return a gap; an error shows it as it was written."""
    try:
        return Gap(int(rest[1])) if rest[2] is None else Gap(min=int(rest[1]), max=int(rest[2]))
    except FieldError as error:
        raise FieldError(error.field, f"[[gap{rest[0]}", error.problem, error.remedy) from None


def escape_gaps(text: str) -> str:
    """Escape everything in a text that `parse_gaps` would read as a gap."""
    return OPENING.sub(lambda opening: "\\" * (2 * len(opening[1]) + 1) + "[[gap", text)
