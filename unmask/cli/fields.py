"""Parse FIELD=VALUE by the type of the dataclass field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from unmask.errors import FieldError

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NUMBERS = {int: "a whole number", float: "a number"}


def parse_fields(sampler: Any, settings: Sequence[str]) -> dict[str, Any]:
    """Return values by field; an unknown field keeps its text, and `check_fields` rejects it."""
    from unmask.samplers.wrapper import settings as settings_of

    kinds = settings_of(sampler)
    parsed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise FieldError("--set", setting, "must be FIELD=VALUE, such as max_jsd=0.05")
        if name in parsed:
            raise FieldError("--set", setting, f"must not set {name} twice")
        parsed[name] = parse(name, kinds[name], text) if name in kinds else text
    return parsed


def parse(name: str, kind: Any, text: str) -> Any:
    """Parse a text as a value of this type."""
    if kind in NUMBERS:
        return _number(name, kind, text)
    if kind is bool:
        return _one_of(name, TRUTH, text.lower())
    if get_origin(kind) in (Union, UnionType):
        return _union(name, kind, text)
    if get_origin(kind) is Literal:
        return _one_of(name, {str(choice): choice for choice in get_args(kind)}, text)
    if get_origin(kind) is tuple:
        return tuple(parse(name, get_args(kind)[0], part) for part in text.split(",") if part)
    if is_dataclass(kind):
        return _sampler(name, kind, text)
    return text


def describe(kind: Any) -> str:
    """Describe the values that a user may write."""
    if get_origin(kind) in (Union, UnionType):
        return " | ".join("none" if part is NoneType else describe(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return " | ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return f"{describe(get_args(kind)[0])},..."
    return "sampler" if is_dataclass(kind) else str(kind.__name__)


def _number(name: str, kind: Any, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise FieldError(name, text, f"must be {NUMBERS[kind]}") from None


def _one_of(name: str, choices: dict[str, Any], text: str) -> Any:
    if text not in choices:
        raise FieldError(name, text, f"must be one of {', '.join(choices)}")
    return choices[text]


def _union(name: str, kind: Any, text: str) -> Any:
    """Try the words of a union first (none, and those of its Literal), then its other type."""
    parts = get_args(kind)
    words = {word: value for part in parts for word, value in _words(part).items()}
    if text.lower() in words:
        return words[text.lower()]
    others = [part for part in parts if not _words(part)]
    if not others:
        return _one_of(name, words, text)
    try:
        return parse(name, others[0], text)
    except ValueError:
        kinds = (NUMBERS.get(others[0], describe(others[0])), *words)
        raise FieldError(name, text, f"must be {' or '.join(kinds)}") from None


def _words(part: Any) -> dict[str, Any]:
    """Return the values of a Literal or of None, by the word that a user writes."""
    if part is NoneType:
        return {"none": None}
    return {str(word): word for word in get_args(part)} if get_origin(part) is Literal else {}


def _sampler(name: str, kind: Any, text: str) -> Any:
    from unmask.samplers import make_sampler

    made = make_sampler(text)
    if not isinstance(made, kind):
        raise FieldError(name, text, f"must be a sampler of the kind {kind.__name__}")
    return made
