"""Find the words after "the answer is"."""

from __future__ import annotations

import re

ANSWER = re.compile(r"\banswer\W{0,4}?(?:\bis\b|:)|####", re.IGNORECASE)
RELEASED = re.compile(r"answer is", re.IGNORECASE)
SPACE = re.compile(r"[ \t\n:*]*")
SENTENCE_END = re.compile(r"\.(?:\s|$)|\n")


def answer_ends(text: str, phrase: re.Pattern[str] = ANSWER) -> list[int]:
    """Return where each "answer is" ends."""
    return [match.end() for match in phrase.finditer(text)]


def behind_last(text: str, phrase: re.Pattern[str]) -> str | None:
    """Return the text after the last "answer is", or None if there is none."""
    ends = answer_ends(text, phrase)
    return text[ends[-1] :] if ends else None


def first_sentence(text: str, start: int) -> str:
    """Return the text from `start` to a full stop or line end; a decimal point does not count."""
    begin = SPACE.match(text, start).end()  # type: ignore[union-attr]  # it also matches an empty string
    stop = SENTENCE_END.search(text, begin)
    return text[begin : stop.start() if stop else None].strip(" \t*")
