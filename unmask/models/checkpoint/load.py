"""Load a model by name. For a checkpoint, config.json selects the class and safetensors hold the weights."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unmask.errors import FieldError, one_of
from unmask.models.checkpoint.config import new_tokens, read_config
from unmask.models.checkpoint.hub import find_folder
from unmask.models.checkpoint.weights import (
    StoredTensor,
    check_sizes,
    check_tensors,
    find_shards,
    first_rows,
    read_tensors,
    stored_tensors,
    widest_dtype,
)
from unmask.models.quantized.convert import FORMATS, Quantizer, quantize_modules, stored_format
from unmask.models.quantized.linear import QuantizedLinear
from unmask.models.trunk import Shape, Slot, Trunk
from unmask.plugins import call_factory, is_file_name, load_from_file, load_plugin, plugins

logger = logging.getLogger(__name__)

GROUP = "unmask.models"  # the group of entry points whose names are model types
HF = "hf:"  # the prefix for the name of a Hugging Face masked LM
# lower-case model_type of config.json -> a class, or "module:class", imported on first use
MODEL_TYPES: dict[str, Any] = {
    "llada": "unmask.models.llada:LLaDA",
    "llada2_moe": "unmask.models.llada2:LLaDA2",
    "dream": "unmask.models.dream:Dream",
    "open-dcoder": "unmask.models.dream:OpenDCoder",
    "a2d-qwen3": "unmask.models.qwen:A2DQwen3",
    "a2d-qwen2": "unmask.models.qwen:A2DQwen2",
    "a2d-llama": "unmask.models.qwen:A2DLlama",
    "sdar": "unmask.models.qwen:SDAR",
    "sdar_moe": "unmask.models.qwen:SDARMoE",
    "fast_dllm_qwen": "unmask.models.qwen:FastDLLM",
    "rnd1": "unmask.models.qwen:RND1",
}
# architectures whose model_type is that of another family
ARCHITECTURES: dict[str, Any] = {"LLaDAMoEModelLM": "unmask.models.llada_moe:LLaDAMoE"}
OTHER = "hf:NAME loads any Hugging Face masked LM, unmask.register_model adds your own type"
REMEDIES = {  # model_type -> what to do
    "qwen2": "most fill no masks; for one that does, as Open-dCoder, write open-dcoder in its place",
    "diffusion_gemma": "it has no mask token; transformers itself decodes it",
}
FLOATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Family(Protocol):
    """A class of models with the same architecture."""

    def __call__(self, config: Mapping[str, object]) -> Trunk:
        """Build a model with fresh weights."""
        ...

    def shape_of(self, config: Mapping[str, object]) -> Shape:
        """Read the sizes of a model without building it."""
        ...


def load(
    source: str | Path, *, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> Trunk:
    """Load a model, frozen and in eval mode, from a folder or hub id ("owner/name", "owner/name@revision").

    "hf:NAME" or "hf:FOLDER" loads a Hugging Face masked LM (a HuggingFaceLM, which needs transformers).
    "FILE.py:Class" runs the file and returns Class(). Both decode like a Trunk, but cannot be compiled.
    device="auto" picks CUDA, then MPS, then the CPU. dtype="auto" keeps the stored dtype, but uses float32 on
    the CPU. "fp8", "int8" and "int4" quantize linear layers while they load, and compute everything else in
    bfloat16, or in float32 on the CPU. A model that was saved in one of these formats is loaded in it.
    """
    if isinstance(source, str) and (source.startswith(HF) or is_file_name(source)):
        other: Trunk = _load_other(source, device, dtype)
        return other
    folder = find_folder(source)
    device = pick_device(device)
    config = read_config(folder)
    shape = model_class(config).shape_of(config)
    tensors = stored_tensors(find_shards(folder))
    check_sizes(tensors, layers=shape.layers, weights=shape.weights)
    kept, wanted = stored_format(config), _wanted_format(dtype, stored_format(config))
    with torch.device("meta"):
        model = build(config)
        if kept is not None:
            quantize_modules(model, kept)
    stored = _match_tensors(model, tensors, quantized=kept is not None)
    compute_dtype = _pick_dtype(wanted or dtype, device, stored)
    if wanted is not None:
        warn_if_slow(wanted, device)
    if wanted is None or wanted == kept:
        state = _read_state(model, stored, device, compute_dtype)
    else:
        state = _quantize_state(model, stored, device, compute_dtype, wanted)
    model.load_state_dict(state, assign=True)
    model.folder = folder
    if length := new_tokens(folder):
        model.info = replace(model.info, new_tokens=length)
    attach_tokenizer(model, folder)
    logger.info("loaded %s: %d tensors, %s on %s", folder, len(stored), dtype, device)
    return model.requires_grad_(False).eval()


def attach_tokenizer(model: Trunk, folder: Path) -> None:
    """Attach the folder's tokenizer, if it has one, and add the end tokens that only its files name."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.json")):
        return
    try:
        from unmask.models.text.tokens import Tokenizer
    except ImportError:
        logger.warning("%s has a tokenizer; pip install 'unmask[models]' to use it", folder)
        return
    model.tokenizer = Tokenizer.from_folder(folder)
    ends = dict.fromkeys((*model.info.eos_ids, *model.tokenizer.special.ends))
    model.info = replace(model.info, eos_ids=tuple(ends))


def build(config: Mapping[str, object]) -> Trunk:
    """Build the model that the config's model_type names, with fresh weights."""
    return model_class(config)(config)


def model_class(config: Mapping[str, object]) -> Family:
    """Return the model class that the config's architectures or model_type names."""
    kind, architectures = config.get("model_type"), config.get("architectures")
    if not isinstance(architectures, list | None):
        raise FieldError("architectures", architectures, "must be a list of names", where="config.json")
    listed = architectures or []
    family = next((ARCHITECTURES[name] for name in listed if name in ARCHITECTURES), None)
    known = sorted({*MODEL_TYPES, *plugins(GROUP)})
    if family is None and (not isinstance(kind, str) or kind.lower() not in known):
        problem = f"must be one of {', '.join(known)}"
        raise FieldError("model_type", kind, problem, REMEDIES.get(str(kind), OTHER), "config.json")
    if family is None and str(kind).lower() == "llada" and config.get("num_experts"):
        problem = "must name LLaDAMoEModelLM if a model of type llada has experts"
        raise FieldError("architectures", architectures, problem, where="config.json")
    if family is None:
        family = MODEL_TYPES.get(str(kind).lower())
    if family is None:
        family = load_plugin("model_type", plugins(GROUP)[str(kind).lower()])
    if isinstance(family, str):
        module, _, name = family.partition(":")
        family = getattr(importlib.import_module(module), name)
    found: Family = family
    return found


def register_model(model_type: str, family: type[Trunk] | str) -> None:
    """Register a class, or "module:class", for checkpoints whose config.json has this model_type."""
    if not isinstance(model_type, str) or not model_type:
        raise FieldError("model_type", model_type, "must be a word, as config.json has it")
    if not isinstance(family, str) and not hasattr(family, "shape_of"):
        raise FieldError("family", family, "must be a subclass of unmask.models.trunk.Trunk")
    MODEL_TYPES[model_type.lower()] = family


def absolute_name(source: str) -> str:
    """Return the name of a model with an absolute path, for a process in another folder."""
    prefix = HF if source.startswith(HF) else ""
    path, colon, member = source.removeprefix(prefix), "", ""
    if is_file_name(source):
        path, colon, member = source.rpartition(":")
    return f"{prefix}{Path(path).resolve() if Path(path).exists() else path}{colon}{member}"


def _load_other(source: str, device: str | torch.device, dtype: str | torch.dtype) -> Any:
    """Load a Hugging Face masked LM, or make the model of FILE.py:Class."""
    place = pick_device(device)
    if _format_name(dtype) in FORMATS:
        raise FieldError("dtype", str(dtype), "must be auto or a float for a model that is no checkpoint")
    if source.startswith(HF):
        from unmask.models.hf import load_hf

        return load_hf(source.removeprefix(HF), device=place, dtype=_pick_dtype(dtype, place, []))
    model = call_factory("model", source, load_from_file("model", source))
    if not callable(model) or not hasattr(model, "info"):
        remedy = "docs/adding-a-model.md has a complete one"
        raise FieldError("model", source, "must make a model with `info` and `__call__`", remedy)
    if not hasattr(model, "tokenizer"):
        model.tokenizer = None  # like a checkpoint without a tokenizer
    if not isinstance(model, nn.Module):
        return model
    model = model.to(place) if dtype == "auto" else model.to(place, _pick_dtype(dtype, place, []))
    return model.requires_grad_(False).eval()


def pick_device(device: str | torch.device) -> torch.device:
    """Resolve a device name; raise if this machine does not have the device."""
    if not isinstance(device, (str, torch.device)):
        raise FieldError("device", device, "must be a name or a torch.device", "use 'auto' to pick one")
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


def _match_tensors(
    model: Trunk, tensors: Sequence[StoredTensor], *, quantized: bool
) -> list[tuple[Slot, StoredTensor]]:
    """Find the place of every stored tensor in the model; raise unless names and shapes match exactly."""
    needed = {stored.key: stored for stored in tensors if model.needs(stored.key)}
    if not quantized:
        _check_separate(needed)
    _warn_of_spare_head(model, tensors)
    slots, state, fixed = model.slots(), model.state_dict(), _fixed_dtypes(model)
    check_tensors(
        {key: tuple(state[slot.name][slot.part].shape) for key, slot in slots.items()},
        needed,
        dtypes={key: fixed[slot.name] for key, slot in slots.items() if slot.name in fixed},
    )
    return [(slots[key], stored) for key, stored in needed.items()]


def _warn_of_spare_head(model: Trunk, tensors: Sequence[StoredTensor]) -> None:
    """Warn if a config ties head and embedding, but the file holds a separate head."""
    stored = {tensor.key: tensor for tensor in tensors}
    head, embedding = (stored.get(model.publish(name)) for name in ("head.weight", "embed.weight"))
    if head is None or embedding is None or model.needs(head.key):
        return
    if not torch.equal(first_rows(head), first_rows(embedding)):
        remedy = "set the tie to false in config.json if the model needs this head"
        logger.warning("%s differs from the embedding, but is ignored: they are tied; %s", head.key, remedy)


def _fixed_dtypes(model: Trunk) -> dict[str, torch.dtype]:
    """Return the dtype of every tensor of quantized layers. The user chooses the dtype of all others."""
    return {
        f"{path}.{name}": tensor.dtype
        for path, module in model.named_modules()
        if isinstance(module, QuantizedLinear)
        for name, tensor in module.named_buffers()
    }


def _check_separate(stored: Mapping[str, StoredTensor]) -> None:
    """Raise if a file holds the experts of a layer in one tensor, whose layout differs from tool to tool."""
    for key, tensor in stored.items():
        if re.search(r"\.experts\.(?!\d)", key):
            problem = "must hold one matrix per expert, but this file was saved with fused experts"
            remedy = "convert it with the tool that saved it (dFactory: its MoE conversion script)"
            raise FieldError(key, list(tensor.shape), problem, remedy, tensor.file.name)


def _read_state(
    model: Trunk,
    stored: Sequence[tuple[Slot, StoredTensor]],
    device: torch.device,
    compute_dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Read the state dict onto `device`, converting one tensor at a time to save memory."""
    state: dict[str, Tensor] = {}
    empty, fixed = model.state_dict(), _fixed_dtypes(model)
    for slot, mapped in read_tensors(stored):
        name = slot.name
        dtype = fixed.get(name, torch.float32 if keeps_float32(name) else compute_dtype)
        if slot.part:  # an expert, whose stack is filled shard by shard
            if name not in state:
                state[name] = torch.empty(empty[name].shape, dtype=dtype, device=device)
            state[name][slot.part].copy_(mapped)
            continue
        state[name] = _copied(mapped, device, dtype)
    return state


def _quantize_state(
    model: Trunk,
    stored: Sequence[tuple[Slot, StoredTensor]],
    device: torch.device,
    compute_dtype: torch.dtype,
    format: str,
) -> dict[str, Tensor]:
    """Read the state dict onto `device` and quantize it on the way. Replace the layers of the model."""
    rows = {name: tensor.shape[-2:-1].numel() for name, tensor in model.state_dict().items()}
    quantizer = Quantizer(model, format, device)
    for slot, mapped in read_tensors(stored):
        name = slot.name
        if name in quantizer.layers:
            quantizer.write(name, mapped, _first_row(slot, rows[name]))
        else:
            dtype = torch.float32 if keeps_float32(name) else compute_dtype
            quantizer.state[name] = _copied(mapped, device, dtype)
    return quantizer.state


def _first_row(slot: Slot, rows: int) -> int:
    """Return the first row of a slot in its stack of experts, which have `rows` rows each."""
    starts = [(part.start or 0) if isinstance(part, slice) else part * rows for part in slot.part]
    return sum(starts)


def _copied(mapped: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Copy a tensor out of its file, because a memory-mapped tensor would change with the file."""
    return mapped.to(device, copy=True).to(dtype)


def keeps_float32(name: str) -> bool:
    """Return whether one of our tensors stays in float32 in a narrower model, as a router's bias does."""
    return name.endswith(".expert_bias")


def _format_name(dtype: str | torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _wanted_format(dtype: str | torch.dtype, kept: str | None) -> str | None:
    """Return the format that the model should have, or None for plain weights."""
    name = _format_name(dtype)
    if kept is not None and name not in ("auto", kept):
        problem = f"must be auto or {kept}, as the checkpoint was saved"
        raise FieldError("dtype", name, problem, "for another, load the checkpoint that it was made from")
    return kept or (name if name in FORMATS else None)


def warn_if_slow(format: str, device: torch.device) -> None:
    """Warn if a device computes fp8 products in float32, which is slow."""
    if format == "fp8" and not FORMATS[format].layer.has_products(device):
        logger.warning("%s has no fp8 products: they are computed in float32, slowly", device)


def _pick_dtype(
    dtype: str | torch.dtype, device: torch.device, stored: Sequence[tuple[Slot, StoredTensor]]
) -> torch.dtype:
    """Pick the dtype of activations and of all weights that are not quantized."""
    name = _format_name(dtype)
    if name in FORMATS:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name == "auto":
        return torch.float32 if device.type == "cpu" else _stored_dtype(stored)
    one_of("dtype", name, ("auto", *FORMATS, *FLOATS))
    return FLOATS[name]


def _stored_dtype(stored: Sequence[tuple[Slot, StoredTensor]]) -> torch.dtype:
    """Return the widest dtype of a checkpoint, apart from tensors that are always in float32."""
    return widest_dtype(tensor for slot, tensor in stored if not keeps_float32(slot.name))
