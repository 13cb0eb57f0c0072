"""Reading config.json: fields by name, special ids, and refusal of what no class here can run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path

from unmask.errors import FieldError
from unmask.models.files import read_object
from unmask.types import ModelInfo, ScheduleName

CONFIG = "config.json"
Config = Mapping[str, object]


def read_config(folder: Path) -> dict[str, object]:
    """config.json of a checkpoint folder; ids that it lacks come from generation_config.json."""
    config: dict[str, object] = read_object(folder / CONFIG)
    if not config:
        raise ValueError(f"{folder} has no config.json; is it a checkpoint folder?")
    for name, value in read_object(folder / "generation_config.json").items():
        if name == "eos_token_id":
            config[name] = list(dict.fromkeys((*ids(config, name), *ids({name: value}, name))))
        elif name in ("mask_token_id", "pad_token_id") and config.get(name) is None:
            config[name] = value
    return config


def new_tokens(folder: Path) -> int | None:
    """How many tokens the model is meant to write, where generation_config.json says so."""
    length = read_object(folder / "generation_config.json").get("max_new_tokens")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        where = f"{folder}/generation_config.json"
        raise FieldError("max_new_tokens", length, "must be a whole number >= 1", where=where)
    return length


def integer(config: Config, name: str, *, default: int | None = None) -> int:
    """A whole number of the config; `default` where it is absent or null."""
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(name, value, "must be a whole number", where=CONFIG)
    return value


def size(config: Config, name: str, *, default: int | None = None) -> int:
    """A whole number of the config that is at least 1."""
    value = integer(config, name, default=default)
    if value < 1:
        raise FieldError(name, value, "must be a whole number >= 1", where=CONFIG)
    return value


def positive(config: Config, name: str, *, default: float | None = None) -> float:
    """A number of the config that is more than 0."""
    value = number(config, name, default=default)
    if not 0 < value < inf:
        raise FieldError(name, value, "must be > 0 and finite", where=CONFIG)
    return value


def number(config: Config, name: str, *, default: float | None = None) -> float:
    """A number of the config; `default` where it is absent or null."""
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(name, value, "must be a number", where=CONFIG)
    return float(value)


def ids(config: Config, name: str) -> tuple[int, ...]:
    """Token ids of a field that may be absent, one id or a list."""
    value = config.get(name)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in listed):
        raise FieldError(name, value, "must be a token id or a list of them", where=CONFIG)
    return tuple(listed)


def require(config: Config, expected: Config) -> None:
    """Refuse a config whose fields, where present, differ from what the class implements."""
    wrong = [
        f"{name} must be {json.dumps(value)}, got {json.dumps(config[name])}"
        for name, value in expected.items()
        if config.get(name) is not None and config[name] != value
    ]
    if wrong:
        raise ValueError(f"config.json describes a model that is not supported: {'; '.join(wrong)}")


def special_ids(
    config: Config,
    *,
    vocab_size: int,
    max_length: int,
    block_length: int | None,
    schedule: ScheduleName,
) -> ModelInfo:
    """The ModelInfo of a checkpoint, its ids taken from the config."""
    eos_ids = ids(config, "eos_token_id")
    return ModelInfo(
        vocab_size=vocab_size,
        mask_id=integer(config, "mask_token_id"),
        eos_ids=eos_ids,
        pad_id=integer(config, "pad_token_id", default=eos_ids[0] if eos_ids else 0),
        max_length=max_length,
        block_length=block_length,
        schedule=schedule,
    )
