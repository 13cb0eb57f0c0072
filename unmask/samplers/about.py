"""The description of a sampler: its group, a sentence, when to use it, and a line about every field."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.catalog import PRESETS
from unmask.describe import field_lines, sentence, usage
from unmask.samplers import GROUPS
from unmask.samplers.wrapper import inner, layers, settings
from unmask.types import Sampler

OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The description of a sampler, from the docstrings of its classes and the sentence of its preset.

    Attributes:
        group: The group of presets that it belongs to, or "others" for your own sampler.
        summary: What it does, in one sentence.
        use: When to use it, or "" if its class does not say so.
        fields: A line about every field that can be set, by name, or "" if its class does not explain it.
    """

    group: str
    summary: str
    use: str
    fields: dict[str, str]


def about(name: str, sampler: Sampler) -> About:
    """Return the description of a sampler with this name. Its fields may differ from those of the preset."""
    lines: dict[str, str] = {}
    for layer in reversed(list(layers(sampler))):  # an outer sampler explains its own fields
        lines |= field_lines(type(layer))
    kind = type(inner(sampler))
    return About(
        group=next((title for title, group in GROUPS.items() if name in group), OTHERS),
        summary=PRESETS.get(name) or sentence(kind),
        use=usage(kind),
        fields={field: lines.get(field, "") for field in settings(sampler)},
    )
