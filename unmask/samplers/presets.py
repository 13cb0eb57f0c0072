"""Preset files: a sampler's name and the fields that calibration changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from unmask.errors import known_field
from unmask.files import read_bytes
from unmask.samplers.registry import check_fields, known_sampler
from unmask.samplers.wrapper import change
from unmask.types import Sampler

LARGEST = 1 << 20  # bytes of a preset file


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A preset file's content: a sampler's name and the fields that it changes.

    Attributes:
        sampler: The name of a known sampler, not of a file, because reading a preset must not run code.
        fields: The changed values, by field of the sampler.
        about: A note for people; no code reads it.
    """

    sampler: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""

    def build(self) -> Sampler:
        """Return the sampler."""
        preset = known_sampler(self.sampler)
        check_fields(self.sampler, preset, self.fields)
        return change(preset, self.fields)


def read_preset(path: Path) -> Preset:
    """Read a preset from a file."""
    try:
        content = json.loads(read_bytes(path, LARGEST))
        _check_content(content)
        preset = Preset(**content)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; name a preset file or a sampler") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a preset ({error}); "
            'it must hold {"sampler": NAME, "fields": {...}, "about": TEXT}'
        ) from None
    if not isinstance(preset.sampler, str) or not isinstance(preset.fields, dict):
        raise ValueError(f"{path} is not a preset; sampler must be a name and fields an object")
    return preset


def _check_content(content: object) -> None:
    """Raise unless this is a JSON object with the fields of a preset."""
    if not isinstance(content, dict):
        raise TypeError(f"it must be a JSON object, got a {type(content).__name__}")
    for name, value in content.items():
        known_field(name, value, [item.name for item in fields(Preset)], "a preset")
    if "sampler" not in content:
        raise ValueError("its field sampler is missing")


def write_preset(path: Path, preset: Preset) -> None:
    """Write a preset to a file."""
    preset.build()  # raise before writing a preset that cannot be built
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(preset), indent=2) + "\n", encoding="utf-8")
