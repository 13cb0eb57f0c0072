"""Range checks of fields; every message names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real


def within(name: str, value: float, low: float, high: float) -> None:
    if not _is_number(value) or not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")


def probability(name: str, value: float) -> None:
    within(name, value, 0, 1)


def share(name: str, value: float) -> None:
    if not _is_number(value) or not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value!r}")


def at_least(name: str, value: float, low: float) -> None:
    if not _is_number(value) or not value >= low:
        raise ValueError(f"{name} must be >= {low}, got {value!r}")


def whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")


def finite(name: str, value: float) -> None:
    if not _is_number(value) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be >= 0 and finite, got {value!r}")


def flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def token_ids(name: str, ids: Sequence[int], vocabulary: int) -> None:
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ValueError(f"{name} must be token ids from 0 to {vocabulary - 1}, got {token}")


def id_tuple(name: str, value: object) -> tuple[int, ...]:
    """The ids as a tuple; a list of them, as JSON has it, will do."""
    if not isinstance(value, (tuple, list)) or not all(map(_is_id, value)):
        raise ValueError(f"{name} must be a tuple of token ids such as (2, 7), got {value!r}")
    return tuple(value)


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The known word that is nearest, as a question before the list of all; empty: none is near."""
    close = get_close_matches(wrong, list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _is_id(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
