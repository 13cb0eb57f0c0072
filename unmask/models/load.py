"""From a checkpoint to a model: config.json picks the class, safetensors fill it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import FieldError, one_of
from unmask.models.config import new_tokens, read_config
from unmask.models.hub import find_folder
from unmask.models.quantize import quantize, quantize_linears
from unmask.models.trunk import Trunk
from unmask.models.weights import (
    Stored,
    check_tensors,
    find_shards,
    read_tensors,
    stored_dtype,
    stored_tensors,
)

logger = logging.getLogger(__name__)

# model_type of config.json, lower case -> where its class lives; imported when asked for
MODEL_TYPES = {
    "llada": "unmask.models.llada:LLaDA",
    "dream": "unmask.models.dream:Dream",
}
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load(
    source: str | Path, *, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> Trunk:
    """The model of a checkpoint folder or hub id ("owner/name", "owner/name@revision"), frozen, in eval mode.

    device "auto" takes CUDA, then MPS, then the CPU. dtype "auto" is the stored one, except on the CPU, where
    it is float32; "int8" stores linear layers in one byte per weight and computes in bfloat16 (CPU: float32).
    """
    folder = find_folder(source)
    place = pick_device(device)
    with torch.device("meta"):
        model = build(read_config(folder))
    found = _match(model, folder)
    compute = _pick_dtype(dtype, place, found)
    narrow = quantize_linears(model) if _is_int8(dtype) else set()
    model.load_state_dict(_read(found, place, compute=compute, narrow=narrow), assign=True)
    model.folder = folder
    if length := new_tokens(folder):
        model.info = replace(model.info, new_tokens=length)
    attach_tokenizer(model, folder)
    logger.info("loaded %s: %d tensors, %s on %s", folder, len(found), dtype, place)
    return model.requires_grad_(False).eval()


def attach_tokenizer(model: Trunk, folder: Path) -> None:
    """Give the model its tokenizer, where the folder has one, and the end tokens that only its files name."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        return
    try:
        from unmask.models.tokens import Tokenizer
    except ImportError:
        logger.warning("%s has a tokenizer; pip install 'unmask[models]' to use it", folder)
        return
    model.tokenizer = Tokenizer.from_folder(folder)
    ends = dict.fromkeys((*model.info.eos_ids, *model.tokenizer.special.ends))
    model.info = replace(model.info, eos_ids=tuple(ends))


def build(config: Mapping[str, object]) -> Trunk:
    """A model of the class that the config's model_type names, with fresh weights."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind.lower() not in MODEL_TYPES:
        raise FieldError(
            "model_type",
            kind,
            f"must be one of {', '.join(sorted(MODEL_TYPES))}",
            "unmask.models.hf wraps any Hugging Face masked LM",
            "config.json",
        )
    module, _, name = MODEL_TYPES[kind.lower()].partition(":")
    model: Trunk = getattr(importlib.import_module(module), name)(config)
    return model


def pick_device(device: str | torch.device) -> torch.device:
    """The device that a name means, checked to be there."""
    if device == "auto":
        device = (
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        place = torch.device(device)
    except RuntimeError:
        raise FieldError("device", device, "must be auto, cpu, cuda, cuda:N or mps") from None
    there = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if (place.index or 0) >= there.get(place.type, 0):
        raise FieldError("device", str(device), "is not available on this machine", "use auto or cpu")
    return place


def _match(model: Trunk, folder: Path) -> dict[str, Stored]:
    """Our tensor names -> stored tensors, after checking that they fit each other exactly."""
    named = [(model.rename(stored.key), stored) for stored in stored_tensors(find_shards(folder))]
    needed = {name: stored for name, stored in named if name is not None}
    check_tensors(
        {model.publish(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()},
        {stored.key: stored for stored in needed.values()},
    )
    return needed


def _read(
    found: Mapping[str, Stored], place: torch.device, *, compute: torch.dtype, narrow: set[str]
) -> dict[str, Tensor]:
    """The model's state on `place`; tensors are read, converted and let go one by one."""
    state = {}
    for name, stored in read_tensors(found):
        tensor = stored.to(place, copy=True)  # a memory-mapped tensor would change with its file
        if name in narrow:
            state[name], state[f"{name.removesuffix('weight')}scale"] = quantize(tensor)
        else:
            state[name] = tensor.to(compute)
    return state


def _is_int8(dtype: str | torch.dtype) -> bool:
    return dtype in ("int8", torch.int8)


def _pick_dtype(dtype: str | torch.dtype, place: torch.device, found: Mapping[str, Stored]) -> torch.dtype:
    """The dtype of activations and of all weights that are not int8."""
    if _is_int8(dtype):
        return torch.float32 if place.type == "cpu" else torch.bfloat16
    if dtype == "auto":
        return torch.float32 if place.type == "cpu" else stored_dtype(found)
    name = str(dtype).removeprefix("torch.")
    one_of("dtype", name, ("auto", "int8", *FLOATS))
    return FLOATS[name]
