"""Compare mathematical answers by exact match after rewriting, as the released scoring does."""

from __future__ import annotations

import re
from collections.abc import Callable

from unmask.evals.answers.boxed import boxed
from unmask.evals.answers.phrase import RELEASED, behind_last

LISTED = "separated by commas"  # a question with this phrase has several answers, in any order
SAME: dict[str, str | Callable[[re.Match[str]], str]] = {  # spelling -> the spelling we keep
    r"\\[dtc]frac": r"\\frac",
    r"\\(?:left|right|displaystyle|[,;:!> ])(?![a-zA-Z])": "",
    r"\\q?quad(?![a-zA-Z])|~": "",
    r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degree\b|\bdegrees?\b|°": "",
    r"\\?[$%]": "",
    r"\\(?:le|ge|ne)q\b": lambda match: match.group()[:-1],
    r"\\[lr]brace\b": lambda match: r"\{" if "l" in match.group()[:2] else r"\}",
    r"(?<=\S)\s*\\(?:text|mbox|mathrm|textrm)\{(?!and\b|or\b)[^{}]*\}(?:\^\{?\d\}?)?\s*$": "",  # a unit
    r"\\(?:text|mbox|mathrm|mathbf|textbf|textrm|textit)\{([^{}]*)\}": r"\1",
    r"(?<=\d)\s*(?:dollars|cents|inches|feet|miles|meters|cm|units|square units|hours|minutes|days)$": "",
    r"\\sqrt\s*(\w)": r"\\sqrt{\1}",
    r"\\frac\s*(\d)\s*(\d)": r"\\frac{\1}{\2}",
    r"\\frac\s*(\d)\s*\{": r"\\frac{\1}{",
    r"(\\frac\{[^{}]*\})\s*(\w)": r"\1{\2}",
    r"(?<![\w}])(-?\d+)\s*/\s*(\d+)(?!\w)": r"\\frac{\1}{\2}",
    r"\\frac\{-(\w+)\}": r"-\\frac{\1}",
    r"^[a-zA-Z](?:_\{?\w\}?)?(?:\([a-zA-Z]\))?\s*(?:=|\\in\b)\s*": "",  # "x = "
    r"(?<![\d,])(\d{1,3})((?:,\d{3})+)(?![\d,])": lambda match: match.group().replace(",", ""),
    r"(?<!\d)\.(?=\d)": "0.",
    r"\d\.\d*0(?!\d)": lambda match: match.group().rstrip("0"),
    r"\.(?!\d)": "",
    r"\s+": "",
}
REWRITES = [(re.compile(pattern), by) for pattern, by in SAME.items()]
LONGEST_FRACTION = 200  # characters
FRACTION = re.compile(r"(-?)\\frac\{(\d+)\}\{(\d+)\}")


def released_match(question: str, gold: str, text: str) -> bool:
    """Return whether one of the text's answers equals the gold one; lists match in any order."""
    listed = LISTED in question
    expected = _spellings(gold, listed)
    return any(_spellings(answer, listed) & expected for answer in released_answers(text))


def released_answers(text: str) -> list[str]:
    """Return all boxes, else the words after the last "answer is", else the last word with a digit."""
    if boxes := boxed(text):
        return boxes
    behind = behind_last(text, RELEASED)
    if behind is not None:
        return re.split(r"(?<!\s)\s+or\s+", re.split(r"\.\s|\.$", behind.strip(" :\n"), maxsplit=1)[0])
    words = [word for word in text.split() if re.search(r"\d", word)]
    return words[-1:]


def rewritten(answer: str) -> str:
    """Rewrite an answer in the spelling used for comparison."""
    answer = answer.strip()
    for pattern, by in REWRITES:
        answer = pattern.sub(by, answer)
    return answer


def _spellings(answer: str, listed: bool) -> set[frozenset[str]]:
    if listed:
        return {frozenset(rewritten(part) for part in answer.split(","))}
    plain = rewritten(answer)
    return {frozenset([spelling]) for spelling in (plain, *_decimal(plain)) if spelling}


def _decimal(plain: str) -> list[str]:
    """Return a fraction of whole numbers as a decimal, if it ends within ten places."""
    match = FRACTION.fullmatch(plain)
    if match is None or len(match[0]) > LONGEST_FRACTION or int(match[3]) == 0:
        return []
    places = (int(match[2]) * 10**10, int(match[3]))
    if places[0] % places[1]:
        return []
    return [match[1] + rewritten(f"{places[0] // places[1] / 10**10:.10f}")]
