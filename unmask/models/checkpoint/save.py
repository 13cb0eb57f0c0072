"""From a model to a checkpoint folder in the published layout and names, one shard in memory at a time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from unmask.models.checkpoint.files import copy_tokenizer, read_object
from unmask.models.checkpoint.load import build, pick_device
from unmask.models.checkpoint.weights import INDEX, SINGLE
from unmask.models.trunk import Trunk

SHARD_BYTES = 5_000_000_000


def save(model: Trunk, folder: str | Path, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write what `load` and the family's published code read: config.json, safetensors, and from the model's
    own folder its tokenizer and generation_config.json."""
    state = model.state_dict()
    if any(tensor.dtype == torch.int8 for tensor in state.values()):
        raise ValueError("an int8 model cannot be saved; load it with a float dtype, then save that")
    _write(model, folder, shards=_plan(state, shard_bytes), tensor_of=lambda name: state[name])
    if model.folder is not None:
        _keep_small_files(model, model.folder, Path(folder))


def random_checkpoint(
    config: Mapping[str, object],
    folder: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
) -> None:
    """Write a checkpoint of random weights, drawn on `device`; they do not depend on `shard_bytes`."""
    place = pick_device(device)
    with torch.device("meta"):
        model = build(config).to(dtype)
    draw = partial(_draw, model, place=place, seed=seed)
    _write(model, folder, shards=_plan(model.state_dict(), shard_bytes), tensor_of=draw)


def random_model(
    config: Mapping[str, object],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cpu",
) -> Trunk:
    """The model that `random_checkpoint` writes, made where it runs."""
    place = pick_device(device)
    with torch.device("meta"):
        model = build(config).to(dtype)
    state = {name: _draw(model, name, place=place, seed=seed) for name in model.state_dict()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def _draw(model: Trunk, name: str, *, place: torch.device, seed: int) -> Tensor:
    """A random tensor for the one of this name in a model on `meta`."""
    generator = torch.Generator(place).manual_seed(seed + zlib.crc32(name.encode()))
    tensor = torch.empty_like(model.state_dict()[name], device=place)
    return _fill(name, tensor, layers=model.shape.layers, generator=generator)


def _fill(name: str, tensor: Tensor, *, layers: int, generator: torch.Generator) -> Tensor:
    """Random values that make a model neither flat nor chaotic: its predictions differ and are decided."""
    if name.endswith("norm.weight"):
        return tensor.fill_(1.0)
    if name == "embed.weight":
        return tensor.normal_(generator=generator)
    tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
    if name.endswith(("query.weight", "key.weight")):
        tensor *= 2.0  # sharper attention, or every masked column would see the same mixture
    elif name.endswith(("output.weight", "down.weight")):
        tensor *= (2 * layers) ** -0.5  # all layers together add about as much as the embedding brings
    elif name == "head.weight":
        strength = torch.empty_like(tensor[:, :1], dtype=torch.float32).normal_(generator=generator)
        tensor *= (strength.abs() / 2).exp()  # a few strong tokens, so that confidences spread
    return tensor


def _write(
    model: Trunk, folder: str | Path, *, shards: list[list[str]], tensor_of: Callable[[str], Tensor]
) -> None:
    from safetensors.torch import save_file

    folder = Path(folder)
    if next(folder.glob("*.safetensors*"), None) is not None:
        raise ValueError(f"{folder} already holds weights; choose an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    total, placed = 0, {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else SINGLE
        tensors = {model.publish(name): _alone(tensor_of(name).cpu().contiguous()) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
        placed.update(dict.fromkeys(tensors, file))
        del tensors  # or the next shard would be gathered while this one is still held
    if len(shards) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": placed})
    _write_json(folder / "config.json", _published_config(model))


def _alone(tensor: Tensor) -> Tensor:
    """The tensor with no other in its memory; `compile` joins some, and the format allows none."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _plan(state: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Tensor names in order, cut into shards of at most `shard_bytes` or one tensor."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, tensor in state.items():
        if shards[-1] and used + tensor.nbytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += tensor.nbytes
    return shards


def _keep_small_files(model: Trunk, source: Path, folder: Path) -> None:
    """Give a saved model the tokenizer and the generation_config.json of the folder that it came from."""
    if source.resolve() != folder.resolve():
        copy_tokenizer(source, folder)
    settings = read_object(source / "generation_config.json")
    if "eos_token_id" in settings:  # `load` adds these to those of config.json
        settings["eos_token_id"] = _end_ids(model)
    if settings:
        _write_json(folder / "generation_config.json", settings)


def _end_ids(model: Trunk) -> int | list[int]:
    ends = model.info.eos_ids
    return ends[0] if len(ends) == 1 else list(ends)


def _published_config(model: Trunk) -> dict[str, object]:
    """The model's config.json with the ids and the dtype that it has now."""
    info = model.info
    return {
        **model.config,
        "mask_token_id": info.mask_id,
        "pad_token_id": info.pad_id,
        "eos_token_id": _end_ids(model),
        "torch_dtype": str(model.embed.weight.dtype).removeprefix("torch."),
    }


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
