"""The error for a bad field, and the checks that raise it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real

LONGEST = 100  # most characters of a value in a message
MAX_NUMBER = 1e9  # largest number in a setting; products of larger ones may overflow in float32
MAX_WHOLE = 2**31 - 1


class FieldError(ValueError):
    """A field or an argument has a value that cannot be used.

    The message is "FIELD PROBLEM, got VALUE; REMEDY", such as "steps must be a whole number >= 1, got 0".
    A field may be a path: `messages[0].content`.
    """

    def __init__(self, field: str, value: object, problem: str, remedy: str = "", where: str = "") -> None:
        super().__init__(field, value, problem, remedy, where)  # copy and pickle rebuild the error from these
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        self.where = where  # the file or the sample that holds the field

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{place}{self.field} {self.problem}, got {shown(self.value)}{remedy}"

    @property
    def root(self) -> str:
        """The first name of the path, such as `messages` in `messages[0].content`."""
        return re.split(r"[.\[]", self.field, maxsplit=1)[0]

    def renamed(self, root: str) -> FieldError:
        """Return this error with another first name in the path of the field."""
        field = root + self.field.removeprefix(self.root)
        return FieldError(field, self.value, self.problem, self.remedy, self.where)

    def inside(self, where: str) -> FieldError:
        """Return this error with the name of the file or the sample that holds the field."""
        place = f"{where}: {self.where}" if self.where else where
        return FieldError(self.field, self.value, self.problem, self.remedy, place)


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise unless the value is in [low, high]."""
    if not _is_number(value) or not low <= value <= high:
        raise FieldError(name, value, f"must be in [{low}, {high}]")


def probability(name: str, value: float) -> None:
    """Raise unless the value is in [0, 1]."""
    within(name, value, 0, 1)


def share(name: str, value: float) -> None:
    """Raise unless the value is in (0, 1]."""
    if not _is_number(value) or not 0 < value <= 1:
        raise FieldError(name, value, "must be in (0, 1]")


def at_least(name: str, value: float, low: float) -> None:
    """Raise if the value is below `low` or too large. Infinity is allowed and means no limit."""
    if not _is_number(value) or not value >= low:
        raise FieldError(name, value, f"must be >= {low}")
    if MAX_NUMBER < value < float("inf"):
        raise FieldError(name, value, f"must be at most {MAX_NUMBER:g}")


def positive(name: str, value: float) -> None:
    """Raise unless the value is above 0 and not too large."""
    if not _is_number(value) or not value > 0:
        raise FieldError(name, value, "must be > 0")
    if value > MAX_NUMBER:
        raise FieldError(name, value, f"must be at most {MAX_NUMBER:g}")


def whole(name: str, value: object, low: int, high: int = MAX_WHOLE) -> None:
    """Raise unless the value is a whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise FieldError(name, value, f"must be a whole number >= {low}")
    if int(value) > high:
        raise FieldError(name, value, f"must be at most {high}")


def finite(name: str, value: float) -> None:
    """Raise unless the value is at least 0, finite and not too large."""
    if not _is_number(value) or not 0 <= value < float("inf"):
        raise FieldError(name, value, "must be >= 0 and finite")
    if value > MAX_NUMBER:
        raise FieldError(name, value, f"must be at most {MAX_NUMBER:g}")


def flag(name: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise FieldError(name, value, "must be True or False")


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raise unless the value is allowed; suggest one with a similar spelling."""
    if value not in (choices := list(allowed)):
        raise FieldError(name, value, f"must be one of {', '.join(choices)}", _suggestion(value, choices))


def known_field(name: str, value: object, names: Iterable[str], owner: str) -> None:
    """Raise if `owner`, such as "the sampler 'less'", has no field of this name."""
    if name not in (choices := sorted(names)):
        remedy = f"{_suggestion(name, choices)} available: {', '.join(choices)}".lstrip()
        raise FieldError(name, value, f"is not a field of {owner}", remedy)


def token_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    """Raise unless every id is a token of a vocabulary of this size."""
    for token in ids:
        if not 0 <= token < vocabulary:
            raise FieldError(name, token, f"must be token ids from 0 to {vocabulary - 1}")


def id_tuple(name: str, value: object, most: int | None = None) -> tuple[int, ...]:
    """Return the ids as a tuple; accept a list too, because JSON has no tuples."""
    if not isinstance(value, (tuple, list)) or not all(map(_is_id, value)):
        raise FieldError(name, value, "must be a tuple of token ids such as (2, 7)")
    if most is not None and len(value) > most:
        raise FieldError(name, len(value), f"must hold at most {most} token ids")
    return tuple(value)


def shown(value: object) -> str:
    """Return the value on one short line; for a tensor, its dtype and shape."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} of shape {list(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _suggestion(wrong: object, choices: Iterable[str]) -> str:
    near = nearest(wrong, choices)
    return "" if near is None else f"did you mean {near!r}?"


def nearest(wrong: object, choices: Iterable[str]) -> str | None:
    """Return the choice closest in spelling to a wrong name, ignoring case, or None if none is close."""
    by_case = {choice.lower(): choice for choice in choices}
    close = get_close_matches(wrong.lower(), by_case, n=1, cutoff=0.75) if isinstance(wrong, str) else []
    return by_case[close[0]] if close else None


def _is_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
