"""Read the option letter that a text chooses."""

from __future__ import annotations

import re

from unmask.evals.answers.boxed import boxed
from unmask.evals.answers.phrase import answer_ends

MARKUP = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed|left|right)\b|\\?\$|[*_`{}]")
# "a man" and "A man" hold an article, "A is right" and "(A) man" a letter
ARTICLE = re.compile(r"a\s+(?!is\b|because\b|since\b|as\b)\w", re.IGNORECASE)


def final_letter(text: str, letters: str) -> str | None:
    """Return the boxed letter, else one after "answer is", at the start of the text, or named last."""
    for box in reversed(boxed(text)):
        if letter := _opening(box, letters):
            return letter
    ends = answer_ends(text)
    for place in reversed(range(len(ends))):
        # a letter comes before the second "answer is" from here, if at all; stopping there keeps this linear
        until = ends[place + 2] if place + 2 < len(ends) else None
        if letter := _opening(text[ends[place] : until], letters):
            return letter
    return _opening(text, letters) or _named(text, letters)


def _opening(text: str, letters: str) -> str | None:
    """Return the letter at the start of a text, alone, in brackets or before its option."""
    plain = MARKUP.sub("", text).lstrip(" \t\n:-\"'")
    plain = re.sub(r"^(?:option|choice|answer)\b\W*", "", plain, flags=re.IGNORECASE)
    if ARTICLE.match(plain):
        return None
    match = re.match(rf"[(\[]?\s*([{letters}])(?![\w'])", plain, re.IGNORECASE)
    return match.group(1).upper() if match else None


def _named(text: str, letters: str) -> str | None:
    """Return the last line if it is a letter, else the letter of the last "option X" or "(X)"."""
    plain = MARKUP.sub("", text).rstrip(" \t\n.")
    last = re.fullmatch(rf"[(\[]?([{letters}])[)\]]?", plain.rsplit("\n", 1)[-1].strip())
    if last:
        return last.group(1)
    options: list[tuple[str, str]] = re.findall(
        rf"\b(?:[Oo]ption|[Cc]hoice)\s+\(?([{letters}])\b|\(([{letters}])\)", plain
    )
    return "".join(options[-1]) if options else None
