"""Save a model in the published layout and names, holding one shard in memory at a time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from unmask.errors import FieldError
from unmask.models.checkpoint.files import copy_tokenizer, read_object
from unmask.models.checkpoint.load import build, keeps_float32, pick_device
from unmask.models.checkpoint.weights import INDEX, SINGLE
from unmask.models.trunk import Trunk

SHARD_BYTES = 5_000_000_000


def save(model: Trunk, folder: str | Path, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a checkpoint that `load` and the family's published code can read.

    Only `load` can read a quantized one. The checkpoint has config.json and safetensors. The tokenizer and
    generation_config.json are copied from the folder that the model was loaded from.
    """
    if not shard_bytes >= 1:
        raise FieldError("shard_bytes", shard_bytes, "must be >= 1")
    if not str(folder) or Path(folder).is_file():
        raise FieldError("folder", str(folder), "must be a folder, or a path where one can be made")
    state = model.state_dict()
    _write(model, folder, shards=_plan_shards(state, shard_bytes), tensor_of=lambda name: state[name])
    if model.folder is not None:
        _copy_small_files(model, model.folder, Path(folder))


def random_checkpoint(
    config: Mapping[str, object],
    folder: str | Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
) -> None:
    """Write a checkpoint with random weights drawn on `device`; `shard_bytes` does not change them."""
    draw_on = pick_device(device)
    with torch.device("meta"):
        model = build(config).to(dtype)
    draw = partial(_random_tensor, model, device=draw_on, seed=seed)
    _write(model, folder, shards=_plan_shards(model.state_dict(), shard_bytes), tensor_of=draw)


def random_model(
    config: Mapping[str, object],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cpu",
) -> Trunk:
    """Build the model that `random_checkpoint` writes, directly on `device`."""
    device = pick_device(device)
    with torch.device("meta"):
        model = build(config).to(dtype)
    state = {name: _random_tensor(model, name, device=device, seed=seed) for name in model.state_dict()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def _random_tensor(model: Trunk, name: str, *, device: torch.device, seed: int) -> Tensor:
    """Draw random values for one tensor of a model on `meta`."""
    generator = torch.Generator(device).manual_seed(seed + zlib.crc32(name.encode()))
    tensor = torch.empty_like(model.state_dict()[name], device=device)
    return _fill_randomly(name, tensor, layers=model.shape.layers, generator=generator)


def _fill_randomly(name: str, tensor: Tensor, *, layers: int, generator: torch.Generator) -> Tensor:
    """Fill a tensor with values scaled so that predictions differ between columns and are confident."""
    if name.endswith("norm.weight"):
        return tensor.fill_(1.0)
    if keeps_float32(name):  # a router's bias, small compared with its scores
        return tensor.float().normal_(0.0, 0.01, generator=generator)
    if name == "embed.weight":
        return tensor.normal_(generator=generator)
    tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
    if name.endswith(("query.weight", "key.weight")):
        tensor *= 2.0  # sharper attention; otherwise all masked columns attend alike
    elif name.endswith(("output.weight", "down.weight", "experts.down")):
        tensor *= (2 * layers) ** -0.5  # all layers together add about as much as the embedding
    elif name == "head.weight":
        strength = torch.empty_like(tensor[:, :1], dtype=torch.float32).normal_(generator=generator)
        tensor *= (strength.abs() / 2).exp()  # a few strong tokens spread the confidences
    return tensor


def _write(
    model: Trunk, folder: str | Path, *, shards: list[list[str]], tensor_of: Callable[[str], Tensor]
) -> None:
    from safetensors.torch import save_file

    folder = Path(folder)
    if next(folder.glob("*.safetensors*"), None) is not None:
        raise ValueError(f"{folder} already holds weights; choose an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    total, weight_map = 0, {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else SINGLE
        tensors = {key: part for name in names for key, part in _published(model, name, tensor_of(name))}
        (folder / file).touch()
        mode = (folder / file).stat().st_mode
        save_file(tensors, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(mode)  # safetensors would let only the owner read it
        total += sum(tensor.nbytes for tensor in tensors.values())
        weight_map.update(dict.fromkeys(tensors, file))
        del tensors  # free this shard before gathering the next
    if len(shards) > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    _write_json(folder / "config.json", _published_config(model))


def _published(model: Trunk, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the published tensors that one of our tensors holds."""
    tensor = tensor.cpu()
    for key, slot in model.published(name).items():
        yield key, _own_storage(tensor[slot.part].contiguous())


def _own_storage(tensor: Tensor) -> Tensor:
    """Copy a tensor that shares storage: `compile` joins some, and safetensors rejects shared memory."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _plan_shards(state: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Group tensor names, in order, into shards of at most `shard_bytes`, with at least one tensor each."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, tensor in state.items():
        if shards[-1] and used + tensor.nbytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += tensor.nbytes
    return shards


def _copy_small_files(model: Trunk, source: Path, folder: Path) -> None:
    """Copy the tokenizer and generation_config.json from the folder that the model was loaded from."""
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
    """Return the model's config.json with its current ids and dtype."""
    info = model.info
    return {
        **model.config,
        "mask_token_id": info.mask_id,
        "pad_token_id": info.pad_id,
        "eos_token_id": _end_ids(model),
        "torch_dtype": str(model.norm.weight.dtype).removeprefix("torch."),
    }


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
