"""FIELD=VALUE as text, read by the type of the dataclass field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from unmask.errors import FieldError

TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NUMBERS = {int: "a whole number", float: "a number"}


def parse_fields(sampler: Any, settings: Sequence[str]) -> dict[str, Any]:
    """Values by field; an unknown field keeps its text, for `make_sampler` to refuse with a suggestion."""
    hints = get_type_hints(type(sampler))
    known = {item.name for item in fields(sampler)}
    parsed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise FieldError("--set", setting, "must be FIELD=VALUE, such as max_jsd=0.05")
        parsed[name] = parse(name, hints[name], text) if name in known else text
    return parsed


def parse(name: str, kind: Any, text: str) -> Any:
    """The text as a value of this type."""
    if kind in NUMBERS:
        return _number(name, kind, text)
    if kind is bool:
        return _one_of(name, TRUTH, text.lower())
    if get_origin(kind) in (Union, UnionType):
        return _optional(name, kind, text)
    if get_origin(kind) is Literal:
        return _one_of(name, {str(choice): choice for choice in get_args(kind)}, text)
    if get_origin(kind) is tuple:
        return tuple(parse(name, get_args(kind)[0], part) for part in text.split(",") if part)
    if is_dataclass(kind):
        return _sampler(name, kind, text)
    return text


def describe(kind: Any) -> str:
    """The type as a user may write its values."""
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


def _optional(name: str, kind: Any, text: str) -> Any:
    [inner] = (part for part in get_args(kind) if part is not NoneType)
    return None if text.lower() == "none" else parse(name, inner, text)


def _sampler(name: str, kind: Any, text: str) -> Any:
    from unmask.samplers import make_sampler

    made = make_sampler(text)
    if not isinstance(made, kind):
        raise FieldError(name, text, f"must be a sampler of the kind {kind.__name__}")
    return made
