"""Read config.json: fields by name, special ids, and a check that the model class supports it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path

from unmask.errors import FieldError
from unmask.models.checkpoint.files import read_object
from unmask.types import ModelInfo, ScheduleName

CONFIG = "config.json"
LARGEST = 1 << 40
LARGEST_SETTING = 1 << 20
Config = Mapping[str, object]


def read_config(folder: Path) -> dict[str, object]:
    """Read config.json of a checkpoint folder; take missing ids from generation_config.json."""
    config: dict[str, object] = read_object(folder / CONFIG)
    if not config:
        raise ValueError(f"{folder} has no config.json; is it a checkpoint folder?")
    for name, value in read_object(folder / "generation_config.json").items():
        if name == "eos_token_id":
            config[name] = list(dict.fromkeys((*token_ids(config, name), *token_ids({name: value}, name))))
        elif name in ("mask_token_id", "pad_token_id") and config.get(name) is None:
            config[name] = value
    return config


def new_tokens(folder: Path) -> int | None:
    """Return max_new_tokens of generation_config.json, or None if it names none."""
    return _generation_setting(folder, "max_new_tokens")


def chat_turns(folder: Path) -> int | None:
    """Return `turns` of generation_config.json, the questions of a chat, or None if it names no limit."""
    return _generation_setting(folder, "turns")


def _generation_setting(folder: Path, name: str) -> int | None:
    value = read_object(folder / "generation_config.json").get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SETTING:
        where = f"{folder}/generation_config.json"
        raise FieldError(name, value, f"must be a whole number from 1 to {LARGEST_SETTING}", where=where)
    return value


def integer(config: Config, name: str, *, default: int | None = None) -> int:
    """Return an integer field, or `default` if it is absent or null."""
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(name, value, "must be a whole number", where=CONFIG)
    return value


def size(config: Config, name: str, *, default: int | None = None) -> int:
    """Return an integer field that must be at least 1; no published size comes near the upper bound."""
    value = integer(config, name, default=default)
    if not 1 <= value <= LARGEST:
        raise FieldError(name, value, f"must be a whole number from 1 to {LARGEST}", where=CONFIG)
    return value


def positive(config: Config, name: str, *, default: float | None = None) -> float:
    """Return a number field that must be greater than 0."""
    value = number(config, name, default=default)
    if not 0 < value < inf:
        raise FieldError(name, value, "must be > 0 and finite", where=CONFIG)
    return value


def number(config: Config, name: str, *, default: float | None = None) -> float:
    """Return a number field, or `default` if it is absent or null."""
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(name, value, "must be a number", where=CONFIG)
    return float(value)


def token_ids(config: Config, name: str) -> tuple[int, ...]:
    """Return the token ids of a field that may be absent, one id or a list."""
    value = config.get(name)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in listed):
        raise FieldError(name, value, "must be a token id or a list of them", where=CONFIG)
    return tuple(listed)


def require(config: Config, expected: Config) -> None:
    """Raise if a field is present and differs from the value that the class implements."""
    wrong = [
        f"{name} must be {json.dumps(value)}, got {json.dumps(config[name])}"
        for name, value in expected.items()
        if config.get(name) is not None and config[name] != value
    ]
    if wrong:
        raise ValueError(f"config.json describes a model that is not supported: {'; '.join(wrong)}")


def model_info(
    config: Config,
    *,
    vocab_size: int,
    max_length: int,
    block_length: int | None,
    schedule: ScheduleName,
) -> ModelInfo:
    """Build the ModelInfo of a checkpoint; the special ids come from its config."""
    eos_ids = token_ids(config, "eos_token_id")
    return ModelInfo(
        vocab_size=vocab_size,
        mask_id=integer(config, "mask_token_id"),
        eos_ids=eos_ids,
        pad_id=integer(config, "pad_token_id", default=eos_ids[0] if eos_ids else 0),
        max_length=max_length,
        block_length=block_length,
        schedule=schedule,
    )
