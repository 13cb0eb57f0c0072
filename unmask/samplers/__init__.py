"""All samplers by name. `make_sampler(name, **fields)` returns a preset with some fields changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from unmask.errors import known_field, one_of
from unmask.samplers.base import Base
from unmask.samplers.dawn import Dawn
from unmask.samplers.entropy_bound import EntropyBound
from unmask.samplers.factor import Factor
from unmask.samplers.klass import KLASS, RELEASED
from unmask.samplers.less import ABLATIONS, LESS
from unmask.samplers.less_released import LESSReleased
from unmask.samplers.prophet import Prophet
from unmask.samplers.threshold import Threshold
from unmask.samplers.wino import WINO
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
    "wino": WINO(),
    "wino-strict": WINO(min_confidence=0.8),
    "dawn": Dawn(),
    "dawn-dream": Dawn(induced_confidence=0.75, low_confidence=0.75, sink=0.03),
    "less": LESS(),
    "less-paper": LESS(policy="frontier", patience=2),
    "less-released": LESSReleased(),
    **{f"less-{name}": sampler for name, sampler in ABLATIONS.items()},
}


def make_sampler(name: str, **changes: Any) -> Sampler:
    """Return the preset called `name`, with some fields changed."""
    one_of("sampler", name, sorted(SAMPLERS))
    preset: Any = SAMPLERS[name]
    check_fields(name, preset, changes)
    made: Sampler = replace(preset, **changes)
    return made


def check_fields(name: str, preset: Any, changes: Mapping[str, Any]) -> None:
    """Raise if the sampler called `name` lacks one of the fields."""
    own = [field.name for field in fields(preset)]
    for field, value in changes.items():
        known_field(field, value, own, f"the sampler {name!r}")


__all__ = [
    "KLASS",
    "LESS",
    "SAMPLERS",
    "WINO",
    "Base",
    "Dawn",
    "EntropyBound",
    "Factor",
    "LESSReleased",
    "Prophet",
    "Threshold",
    "make_sampler",
]
