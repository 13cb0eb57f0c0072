"""Find the words after "the answer is"."""

from __future__ import annotations

import re

ANSWER = re.compile(r"\banswer\W{0,4}?(?:\bis\b|:)|####", re.IGNORECASE)
RELEASED = re.compile(r"answer is", re.IGNORECASE)
SENTENCE = re.compile(r"\.(?:\s|$)|\n")


def behind_answers(text: str, phrase: re.Pattern[str] = ANSWER) -> list[str]:
    """Return the text after each "answer is", the last one first."""
    return [text[match.end() :] for match in phrase.finditer(text)][::-1]


def first_sentence(text: str) -> str:
    """Cut a text at its first full stop or line end; a decimal point does not count."""
    return SENTENCE.split(text.lstrip(" \t\n:*"), maxsplit=1)[0].strip(" \t*")
