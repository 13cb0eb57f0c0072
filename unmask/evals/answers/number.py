"""Read the final number of a text."""

from __future__ import annotations

import re
from decimal import Decimal

from unmask.evals.answers.boxed import boxed
from unmask.evals.answers.phrase import RELEASED, answer_ends, behind_last

# a minus after a word, a digit or a bracket subtracts; a comma groups exactly three digits
NUMBER = re.compile(r"(?:(?<![\w)}.])-)?(?:\d{1,3}(?:,\d{3}){1,20}(?![\d,])|\d+)(?:\.\d+)?|(?<!\d)\.\d+")
DIGIT = re.compile(r"\d")
NOISE = re.compile(r"\\?\$|\\[,!;: ]|[*{}]|\\(?:text|mathrm|mathbf)\b")


def final_number(text: str) -> str | None:
    """Return the number after "answer is", else the last boxed one, else the last number."""
    last_digit = max((match.start() for match in DIGIT.finditer(text)), default=-1)
    ends = [end for end in answer_ends(text) if end <= last_digit]
    if ends:
        return _of_answer(text[ends[-1] :])
    for box in reversed(boxed(text)):
        if (number := _of_box(box)) is not None:
            return number
    return _pick(text, -1)


def released_number(text: str) -> str | None:
    """Return the number that the released code reads.

    That is the first box after "answer is", else the first number there. Without the phrase, it is the first
    box, else the last number.
    """
    behind = behind_last(text, RELEASED)
    if behind is None:
        return _of_first_box(text) or _pick(text, -1)
    return _of_first_box(behind) or _pick(behind, 0)


def plain_number(text: str) -> str:
    """Write a number without grouping commas, trailing zeros or a trailing point: "1,234.50" is "1234.5"."""
    value = Decimal(text.replace(",", ""))
    return f"{value.normalize():f}" if value else "0"


def _of_answer(text: str) -> str | None:
    boxes = boxed(text)
    return (_of_box(boxes[0]) if boxes else None) or _pick(text, 0)


def _of_first_box(text: str) -> str | None:
    boxes = boxed(text)
    return _pick(boxes[0], 0) if boxes else None


def _of_box(content: str) -> str | None:
    return _pick(content.rsplit("=", 1)[-1], 0)


def _pick(text: str, place: int) -> str | None:
    # "1{,}000" and "1\,000" group digits like "1,000"
    plain = re.sub(r"(?<=\d)(?:\{,\}|\\[,!])+(?=\d{3})", ",", text).replace("\N{MINUS SIGN}", "-")
    numbers: list[str] = NUMBER.findall(NOISE.sub("", plain))
    return plain_number(numbers[place]) if numbers else None
