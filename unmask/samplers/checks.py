"""Range checks of sampler fields; every message names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence


def within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")


def probability(name: str, value: float) -> None:
    within(name, value, 0, 1)


def at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise ValueError(f"{name} must be >= {low}, got {value}")


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
