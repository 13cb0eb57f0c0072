"""Explain what is wrong with a request: fields as paths, values as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import ValidationError

from unmask.errors import LONGEST, FieldError
from unmask.serving.api_error import ApiError

Path: TypeAlias = tuple[int | str, ...]
NESTED = "the body is nested too deeply"
# by pydantic's error type: the expected value, or the broken rule
VALUES = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
}
RULES = {
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} letters",
    "too_long": "must hold at most {max_length} items",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class Sent:
    """A request value whose repr is JSON; a plain string has single quotes, as on the command line."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        if isinstance(self.value, str):
            return repr(self.value)
        try:
            text = json.dumps(self.value, ensure_ascii=False)
        except TypeError:
            return repr(self.value)
        except RecursionError:
            return "a deeply nested value"
        letters = text[: 2 * LONGEST]  # an error message shows fewer
        return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in letters)


def is_json(value: object) -> bool:
    """Return whether JSON can express a value."""
    try:
        json.dumps(value)
    except (TypeError, RecursionError):
        return False
    return True


def refuse(error: FieldError, *, param: str | None = None) -> ApiError:
    """Return the error response for a bad field; by default, `param` is the first name of its path."""
    shown = FieldError(error.field, Sent(error.value), error.problem, error.remedy, error.where)
    return ApiError(400, str(shown), param=error.root if param is None else param)


def refuse_invalid(
    error: ValidationError, sent: Mapping[str, Any], at: Path = (), *, nullable: bool = False
) -> ApiError:
    """Return the error response for an invalid value; `at` is the path of the value that was checked.

    It reports only the deepest mistake, because a value that may have several types fails the checks of each.
    """
    mistakes = [
        (_path((*at, *each["loc"]), sent, is_missing=each["type"] == "missing"), each)
        for each in error.errors(include_url=False)
    ]
    deepest = max((path for path, _ in mistakes), key=len)
    found = [each for path, each in mistakes if path == deepest]
    field, kind, value = spelled(deepest), found[0]["type"], found[0]["input"]
    if kind == "json_invalid":  # the JSON was parsed before, so only its depth can be the problem
        return ApiError(400, NESTED)
    if kind == "missing":
        return ApiError(400, f"{field} must be given", param=str(deepest[0]))
    if kind == "extra_forbidden":
        return refuse(FieldError(field, value, "is not known", "leave it out"))
    cause = found[0].get("ctx", {}).get("error")
    if isinstance(cause, FieldError):  # raised by a sampler inside a sampler
        path = f"{field}.{cause.field}"
        return refuse(FieldError(path, cause.value, cause.problem, cause.remedy))
    return refuse(FieldError(field, value, _problem(found, nullable)))


def spelled(path: Path) -> str:
    """Return a path as OpenAI spells it: messages[0].content."""
    places = (f"[{place}]" if isinstance(place, int) else f".{place}" for place in path)
    return "".join(places).removeprefix(".")


def sent_at(field: str, sent: Any) -> Any:
    """Return the value at a path of a request, or the part that should hold it."""
    for place in re.findall(r"[^.\[\]]+", field):
        if isinstance(sent, dict) and place in sent:
            sent = sent[place]
        elif isinstance(sent, list) and place.isdecimal() and int(place) < len(sent):
            sent = sent[int(place)]
    return sent


def _path(places: Path, sent: Any, *, is_missing: bool) -> Path:
    """Return the path of a mistake in a request, without the type names that pydantic adds to it."""
    path: list[int | str] = []
    absent = places[-1] if is_missing else None
    for place in places:
        if isinstance(sent, dict) and (place in sent or place == absent):
            path.append(place)
            sent = sent.get(place)
        elif isinstance(sent, list) and isinstance(place, int) and place < len(sent):
            path.append(place)
            sent = sent[place]
    return tuple(path)


def _problem(mistakes: Sequence[Any], nullable: bool) -> str:
    """Return the rule that a value breaks, or the values that it may have."""
    for each in mistakes:
        if each["type"] in RULES:
            return RULES[each["type"]].format(**each["ctx"])
    values = [value for each in mistakes for value in _values(each)]
    *some, last = dict.fromkeys([*values, *(["null"] if nullable else [])])
    return f"must be {', '.join(some)} or {last}" if some else f"must be {last}"


def _values(mistake: Any) -> list[str]:
    """Return the values that were expected in place of a wrong one."""
    if mistake["type"] == "literal_error":
        choices = re.split(r", | or ", mistake["ctx"]["expected"])
        return [CONSTANTS.get(choice, choice) for choice in choices]
    known = VALUES.get(mistake["type"])
    return [mistake["msg"].removeprefix("Input should be ") if known is None else known]
