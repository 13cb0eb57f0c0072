"""All samplers by name. `make_sampler(name, **fields)` returns a preset with some fields changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.errors import known_field, one_of
from unmask.samplers.base import Base
from unmask.samplers.end_last import EndLast
from unmask.samplers.entropy_bound import EntropyBound
from unmask.samplers.factor import Factor
from unmask.samplers.klass import KLASS, RELEASED
from unmask.samplers.less import ABLATIONS, LESS
from unmask.samplers.less_released import LESSReleased
from unmask.samplers.prophet import Prophet
from unmask.samplers.spaced import Spaced
from unmask.samplers.threshold import Threshold
from unmask.samplers.wrapper import change, settings
from unmask.types import Sampler

SAMPLERS: dict[str, Sampler] = {
    "base": Base(),
    "base-margin": Base(order="margin"),
    "base-entropy": Base(order="entropy"),
    "base-origin": Base(order="origin"),
    "random": Base(order="random"),
    "threshold": Threshold(),
    "factor": Factor(),
    "factor-released": Factor(last_rank_free=True),
    "entropy-bound": EntropyBound(),
    "klass": KLASS(),
    **{f"klass-{name}": KLASS(min_confidence=c, max_kl=kl) for name, (c, kl) in RELEASED.items()},
    "prophet": Prophet(),
    "prophet-dream": Prophet(base=Base(order="entropy")),
    "less": LESS(),
    "less-paper": LESS(policy="frontier", patience=2),
    "less-released": LESSReleased(),
    "less-first-mask": EndLast(LESS(fallback="first")),
    **{f"less-{name}": sampler for name, sampler in ABLATIONS.items()},
}


def make_sampler(name: str, **changes: Any) -> Sampler:
    """Return the preset called `name`, with some fields changed."""
    one_of("sampler", name, sorted(SAMPLERS))
    preset = SAMPLERS[name]
    check_fields(name, preset, changes)
    return change(preset, changes)


def check_fields(name: str, preset: Sampler, changes: Mapping[str, Any]) -> None:
    """Raise if the sampler called `name` lacks one of the fields."""
    for field, value in changes.items():
        known_field(field, value, settings(preset), f"the sampler {name!r}")


__all__ = [
    "KLASS",
    "LESS",
    "SAMPLERS",
    "Base",
    "EndLast",
    "EntropyBound",
    "Factor",
    "LESSReleased",
    "Prophet",
    "Spaced",
    "Threshold",
    "make_sampler",
]
