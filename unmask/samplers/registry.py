"""Samplers by name: presets, registered ones, entry points of packages, and classes in files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast

from unmask.errors import FieldError, known_field, nearest
from unmask.plugins import call_factory, is_file_name, load_from_file, load_plugin, plugins
from unmask.samplers.wrapper import change, settings
from unmask.types import Sampler

logger = logging.getLogger(__name__)
GROUP = "unmask.samplers"  # group of the entry points
PRESET_FILE = ".json"
SAMPLERS: dict[str, Sampler] = {}  # filled by unmask/samplers/__init__.py and register_sampler
_own: set[str] = set()  # names that users registered


def make_sampler(name: str, **changes: Any) -> Sampler:
    """Return the sampler of this name, with some fields changed.

    A name is that of a preset, a registered sampler or an entry point. It may also be a preset file FILE.json
    or FILE.py:Class, which runs the file.
    """
    preset = find_sampler(name)
    check_fields(name, preset, changes)
    return change(preset, changes)


def register_sampler(name: str, factory: type | Callable[[], Sampler] | Sampler) -> None:
    """Make a sampler usable by name everywhere in this process.

    `factory` is a class whose fields have defaults, a function without arguments, or a sampler.
    """
    if not isinstance(name, str) or not name or any(sign in name for sign in ",:/\\"):
        raise FieldError("name", name, "must be a word such as 'my-sampler', without , : and /")
    if name in SAMPLERS and name not in _own:
        raise FieldError("name", name, "must not be the name of a preset of unmask", "choose another name")
    if not callable(factory) and not hasattr(factory, "decide"):
        problem = "must be a sampler, or a class or function that makes one"
        raise FieldError("factory", factory, problem)
    SAMPLERS[name] = _make(name, factory)
    _own.add(name)


def as_sampler(sampler: str | Sampler) -> Sampler:
    """Return the sampler, or the one of this name."""
    return find_sampler(sampler) if isinstance(sampler, str) else sampler


def find_sampler(name: str) -> Sampler:
    """Return the sampler of a name, of a preset file FILE.json, or of FILE.py:Class, which runs the file.

    For names from a network, use `known_sampler`, which opens no files.
    """
    if is_file_name(name):
        return _make(name, load_from_file("sampler", name))
    if isinstance(name, str) and name.endswith(PRESET_FILE):
        from unmask.samplers.presets import read_preset

        return read_preset(Path(name)).build()
    return known_sampler(name)


def known_sampler(name: str) -> Sampler:
    """Return the preset, the registered sampler or the entry point of this name."""
    if name not in SAMPLERS:
        points = plugins(GROUP)
        check_name(name, {*SAMPLERS, *points})
        register_sampler(name, load_plugin("sampler", points[name]))
    return SAMPLERS[name]


def all_samplers() -> dict[str, Sampler]:
    """Return every sampler that has a name; leave out entry points that cannot be loaded."""
    for name in plugins(GROUP):
        try:
            known_sampler(name)
        except FieldError as error:
            logger.warning("%s", error)
    return dict(SAMPLERS)


def check_name(name: str, names: Iterable[str]) -> None:
    """Raise unless a sampler has this name; suggest one with a similar spelling."""
    if name in (choices := sorted(names)):
        return
    near = nearest(name, choices)
    guess = "" if near is None else f"did you mean {near!r}? "
    raise FieldError("sampler", name, "must be the name of a sampler", f"{guess}`unmask samplers` lists all")


def check_fields(name: str, preset: Sampler, changes: Mapping[str, Any]) -> None:
    """Raise if the sampler called `name` lacks one of the fields."""
    for field, value in changes.items():
        known_field(field, value, settings(preset), f"the sampler {name!r}")


def _make(name: str, factory: Any) -> Sampler:
    """Return the sampler that a class or a function makes."""
    is_value = not isinstance(factory, type) and hasattr(factory, "decide")
    made = factory if is_value else call_factory("sampler", name, factory)
    if isinstance(made, type) or not (hasattr(made, "decide") and hasattr(made, "needs")):
        remedy = "docs/adding-a-sampler.md has a complete one"
        raise FieldError("sampler", name, "must have `needs` and `decide`", remedy)
    if not is_dataclass(made) or type(made).__hash__ is None:
        remedy = "write @dataclass(frozen=True) above its class"
        raise FieldError("sampler", name, "must be a frozen dataclass to be used by name", remedy)
    return cast(Sampler, made)
