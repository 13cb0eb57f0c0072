"""Turn the generation arguments of an lm-eval request into a GenerationConfig."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from unmask.constraints.language import Choice, Constraint, JSONSchema, Regex
from unmask.errors import FieldError, known_field
from unmask.text.config import GenerationConfig

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first one counts
# argument of other decoders -> the value that turns it off
NEUTRAL = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1, "length_penalty": 1}
OTHERS = ("stop", "constraint", *LENGTHS)  # fields that are read separately, or that a text cannot spell
CONSTRAINTS: dict[str, Callable[[Any], Constraint]] = {
    "regex": Regex,
    "choice": lambda value: Choice(value.split("|") if isinstance(value, str) else value),
    "json_schema": JSONSchema,
}
FIELDS = tuple(field.name for field in fields(GenerationConfig) if field.name not in OTHERS)


def default_config(settings: Mapping[str, Any], others: Iterable[str] = ()) -> GenerationConfig:
    """Return the settings of the model's arguments; "none" means None.

    An error about an unknown argument also lists the `others`, which are not settings.
    """
    known = {*FIELDS, "max_new_tokens"}
    for name in settings.keys() - known:
        known_field(name, settings[name], {*known, *others}, "the model arguments")
    return GenerationConfig(**{name: value_of(value) for name, value in settings.items()})


def request_config(default: GenerationConfig, request: Mapping[str, Any]) -> GenerationConfig:
    """Return the default settings, overridden by the arguments of one request."""
    for name, value in request.items():
        _check(name, value)
    length = next((int(request[name]) for name in LENGTHS if request.get(name) is not None), None)
    changes = {name: value_of(value) for name, value in request.items() if name in FIELDS}
    changes |= _constraint(request)
    changes |= {
        "max_new_tokens": default.max_new_tokens if length is None else length,
        "stop": _stop(request.get("until")),
        "temperature": _temperature(default.temperature, request),
    }
    return _fit_block(replace(default, **changes))


def value_of(value: Any) -> Any:
    """Return a value of an argument string; "none" is None."""
    return None if isinstance(value, str) and value.lower() == "none" else value


def _constraint(request: Mapping[str, Any]) -> dict[str, Constraint]:
    """Return the constraint of a request as a change of the settings, empty if it has none."""
    names = [name for name in CONSTRAINTS if request.get(name) is not None]
    if len(names) > 1:
        raise FieldError(names[1], request[names[1]], f"must not come with {names[0]}", "leave out one")
    return {"constraint": CONSTRAINTS[names[0]](request[names[0]])} if names else {}


def _check(name: str, value: Any) -> None:
    if name in ("until", "do_sample", *LENGTHS, *CONSTRAINTS, *FIELDS):
        return
    if name not in NEUTRAL:
        known_field(name, value, ("until", *LENGTHS, *CONSTRAINTS, *FIELDS), "the generation arguments")
    if value != NEUTRAL[name]:
        remedy = f"pass --gen_kwargs {name}={NEUTRAL[name]}"
        raise FieldError(name, value, "has no meaning for a masked diffusion model", remedy)


def _stop(until: str | list[str] | None) -> tuple[str, ...]:
    stops = [until] if isinstance(until, str) else until or []
    return tuple(stop for stop in stops if stop)


def _temperature(default: float, request: Mapping[str, Any]) -> float:
    """Return the temperature of a request, by default that of the model's arguments.

    `do_sample=False` means 0, and `do_sample=True` turns a default of 0 into 1.
    """
    if request.get("do_sample") is False:
        return 0.0
    if request.get("temperature") is not None:
        return float(request["temperature"])
    return default or 1.0 if request.get("do_sample") else default


def _fit_block(config: GenerationConfig) -> GenerationConfig:
    """Shorten the block if the request has fewer tokens."""
    if not isinstance(config.block_length, int) or config.max_new_tokens is None:
        return config
    return replace(config, block_length=min(config.block_length, config.max_new_tokens))
