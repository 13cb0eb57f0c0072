"""Samplers around another sampler, which change its answers. `layers` and `change` look inside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, get_type_hints

from unmask.errors import FieldError
from unmask.types import Needs, Sampler


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A sampler around another one. A subclass adds `decide` and its own fields.

    Attributes:
        sampler: The sampler inside.
    """

    sampler: Sampler

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "decide"):
            raise FieldError("sampler", self.sampler, "must be a sampler such as LESS()")

    @property
    def needs(self) -> Needs:
        return self.sampler.needs


def layers(sampler: Any) -> Iterator[Any]:
    """Yield the sampler and those inside it, the outermost first."""
    yield sampler
    while isinstance(sampler, Wrapper):
        sampler = sampler.sampler
        yield sampler


def inner(sampler: Sampler) -> Sampler:
    """Return the sampler inside all wrappers."""
    *_, innermost = layers(sampler)
    found: Sampler = innermost
    return found


def kind(sampler: Sampler) -> str:
    """Return the names of the classes, such as "LESS" or "EndLast(LESS)"."""
    names = [type(layer).__name__ for layer in layers(sampler)]
    return "(".join(names) + ")" * (len(names) - 1)


def settings(sampler: Sampler) -> dict[str, Any]:
    """Return the type of every field by name; a wrapper has its own fields and those of its sampler."""
    types: dict[str, Any] = {}
    for layer in layers(sampler):
        hints = get_type_hints(type(layer)) if is_dataclass(layer) else {}
        types = {**{name: hints[name] for name in own_fields(layer)}, **types}
    return types


def defaults(sampler: Sampler) -> dict[str, Any]:
    """Return the default of every field by name."""
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for layer in reversed(list(layers(sampler)))
        for item in fields(layer)
        if item.name in own_fields(layer)
    }


def own_fields(layer: Any) -> list[str]:
    """Return the names of a layer's fields, without the sampler inside."""
    names = [item.name for item in fields(layer)] if is_dataclass(layer) else []
    return [name for name in names if name != "sampler"] if isinstance(layer, Wrapper) else names


def change(sampler: Sampler, changes: Mapping[str, Any]) -> Sampler:
    """Return the sampler with some of its `settings` changed."""
    layer: Any = sampler
    mine = {name: value for name, value in changes.items() if name in own_fields(layer)}
    rest = {name: value for name, value in changes.items() if name not in mine}
    if rest and isinstance(layer, Wrapper):
        mine["sampler"] = change(layer.sampler, rest)
    changed: Sampler = replace(layer, **mine) if mine else layer
    return changed


def rebuild(sampler: Sampler, change_inner: Callable[[Sampler], Sampler]) -> Sampler:
    """Return the sampler with the one inside all wrappers changed."""
    if isinstance(sampler, Wrapper):
        return replace(sampler, sampler=rebuild(sampler.sampler, change_inner))
    return change_inner(sampler)
