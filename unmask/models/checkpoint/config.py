"""Read config.json: fields by name, special ids, and a check that the model class supports it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from math import inf
from pathlib import Path

from unmask.errors import FieldError
from unmask.models.checkpoint import implied
from unmask.models.checkpoint.files import read_object
from unmask.types import ModelInfo, ScheduleName

CONFIG = "config.json"
LARGEST = 1 << 40
LARGEST_SETTING = 1 << 20
Config = Mapping[str, object]
# in the names of fields that configure experts or their router
ROUTING = re.compile("router|routed|expert|topk|top_k_|^moe_|_group|score_func|scoring|first_k_dense")
WITHOUT_EFFECT = {"output_router_logits", "router_aux_loss_coef", "moe_backend"}  # not used in a forward


def read_config(folder: Path) -> dict[str, object]:
    """Read config.json of a checkpoint folder; take missing facts from its other files and its name."""
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} has no config.json; is it a checkpoint folder?")
    config: dict[str, object] = read_object(folder / CONFIG)
    if not config:
        raise ValueError(f"{folder / CONFIG} is empty; copy the published one")
    for name, value in read_object(folder / "generation_config.json").items():
        if name == "eos_token_id":
            config[name] = list(dict.fromkeys((*token_ids(config, name), *token_ids({name: value}, name))))
        elif name in ("mask_token_id", "pad_token_id") and config.get(name) is None:
            config[name] = value
    if config.get("mask_token_id") is None and (mask := implied.mask_id(folder)) is not None:
        config["mask_token_id"] = mask
    if config.get("block_size") is None and (length := implied.block_size(folder, config)) is not None:
        config["block_size"] = length
    return config


def new_tokens(folder: Path) -> int | None:
    """Return max_new_tokens of generation_config.json, or None if it names none."""
    return _generation_setting(folder, "max_new_tokens")


def chat_turns(folder: Path) -> int | None:
    """Return `turns` of generation_config.json, the most questions of a chat, or None if it has no limit."""
    return _generation_setting(folder, "turns")


def _generation_setting(folder: Path, name: str) -> int | None:
    value = read_object(folder / "generation_config.json").get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SETTING:
        where = f"{folder}/generation_config.json"
        raise FieldError(name, value, f"must be a whole number from 1 to {LARGEST_SETTING}", where=where)
    return value


def flag(config: Config, name: str) -> bool:
    """Return a field that is true or false, or False if it is absent or null."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise FieldError(name, value, "must be true or false, without quotes", where=CONFIG)
    return bool(value)


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
        problem = "must be a whole number, 1 or more" if value < 1 else "is too large"
        raise FieldError(name, value, problem, where=CONFIG)
    return value


def count(config: Config, name: str) -> int:
    """Return an integer field that must be at least 0, or 0 if it is absent or null."""
    value = integer(config, name, default=0)
    if not 0 <= value <= LARGEST:
        problem = "must be a whole number, 0 or more" if value < 0 else "is too large"
        raise FieldError(name, value, problem, where=CONFIG)
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


def rope_theta(config: Config, *, default: float) -> float:
    """Return the base of the rotations; raise if they are scaled. Newer files hold it in rope_parameters."""
    nested = config.get("rope_parameters") or {}
    for name in ("rope_scaling", "rope_parameters"):
        scaling = config.get(name) or {}
        kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else ""
        if kind != "default":
            raise FieldError(name, config[name], "must be null, as no class scales rotations", where=CONFIG)
    assert isinstance(nested, dict)
    base = config if config.get("rope_theta") is not None else nested
    return positive(base, "rope_theta", default=default)


def layer_numbers(config: Config, name: str, layers: int) -> frozenset[int]:
    """Return the layers that a field lists; an absent field lists none."""
    value = config.get(name) or []
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < layers for item in value):
        raise FieldError(name, value, f"must list layers from 0 to {layers - 1}", where=CONFIG)
    return frozenset(value)


def layer_flags(config: Config, name: str, layers: int) -> list[int]:
    """Return one flag for each layer, or an empty list if the field is absent."""
    value = config.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) != layers or any(flag not in (0, 1) for flag in value):
        raise FieldError(name, value, f"must list 0 or 1 for each of the {layers} layers", where=CONFIG)
    return value


def attention_block(config: Config, name: str, max_length: int, *, default: int | None = None) -> int:
    """Return the block length of the attention."""
    length = size(config, name, default=default)
    if length > max_length:
        problem = f"must be at most the {max_length} columns of a canvas"
        raise FieldError(name, length, problem, "copy it from the published config", CONFIG)
    return length


def expert_count(config: Config) -> tuple[int, int]:
    """Return the number of experts, and of those that a token uses."""
    experts, chosen = size(config, "num_experts"), size(config, "num_experts_per_tok")
    if chosen > experts:
        problem = f"must be at most num_experts ({experts})"
        raise FieldError("num_experts_per_tok", chosen, problem, where=CONFIG)
    return experts, chosen


def known_routing(config: Config, known: Collection[str]) -> None:
    """Raise if the config sets an option of experts or their router that the class does not support."""
    for name, value in config.items():
        if ROUTING.search(name) and name not in known and name not in WITHOUT_EFFECT and value:
            problem = "must be absent: it is a setting of experts that this model class does not know"
            remedy = f"remove it if it does not change the forward; known are {', '.join(sorted(known))}"
            raise FieldError(name, value, problem, remedy, CONFIG)


def require(config: Config, expected: Config, *, absent: Iterable[str] = ()) -> None:
    """Raise if a field is present and differs from the value that the class implements."""
    remedy = "compare config.json with the published one; no model class here runs another value"
    for name, value in {**expected, **dict.fromkeys(absent)}.items():
        if config.get(name) is not None and config[name] != value:
            raise FieldError(name, config[name], f"must be {json.dumps(value)}", remedy, CONFIG)


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
    mask_id = config.get("mask_token_id")
    if mask_id is None:
        problem = "must be in config.json, generation_config.json or the tokenizer's files"
        raise FieldError("mask_token_id", None, problem, "add it to config.json", CONFIG)
    if isinstance(mask_id, bool) or not isinstance(mask_id, int) or not 0 <= mask_id < vocab_size:
        problem = f"must be a token id from 0 to {vocab_size - 1}"
        raise FieldError("mask_token_id", mask_id, problem, where=CONFIG)
    if mask_id in eos_ids:
        problem, remedy = f"must not be the mask token ({mask_id})", "copy both from the published config"
        raise FieldError("eos_token_id", config["eos_token_id"], problem, remedy, CONFIG)
    return ModelInfo(
        vocab_size=vocab_size,
        mask_id=mask_id,
        eos_ids=eos_ids,
        pad_id=integer(config, "pad_token_id", default=eos_ids[0] if eos_ids else 0),
        max_length=max_length,
        block_length=block_length,
        schedule=schedule,
    )
