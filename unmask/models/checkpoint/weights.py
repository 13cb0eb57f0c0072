"""Safetensors on disk: find the shards, check every tensor against the model, read them one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from unmask.models.checkpoint.files import file_inside, read_object

if TYPE_CHECKING:
    from safetensors import safe_open as SafeFile

INDEX = "model.safetensors.index.json"
MOST_NAMED = 8  # most tensors that a message names
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NARROW = {"F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8, "U8": torch.uint8}  # in quantized checkpoints

Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, as its file's header describes it."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str


def find_shards(folder: Path) -> list[Path]:
    """Find the safetensors files of a checkpoint folder."""
    index = folder / INDEX
    if index.exists():
        return _indexed_shards(index)
    if (folder / SINGLE).exists():
        return [file_inside(folder, SINGLE)]
    if any(next(folder.glob(pattern), None) for pattern in PICKLES):
        raise ValueError(
            f"{folder} holds pickle weights only, and unpickling runs code from the file; "
            "convert them to safetensors first"
        )
    raise ValueError(f"{folder} has no weights; expected {SINGLE} or {INDEX}")


def _indexed_shards(index: Path) -> list[Path]:
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict):
        raise ValueError(f"{index} has no valid weight_map; download it again")
    for tensor, file in named.items():
        if not isinstance(file, str):
            raise ValueError(
                f"{index}: weight_map must name a file for {tensor}, got {file!r}; download it again"
            )
    names = sorted(set(named.values()))
    files = [file_inside(index.parent, name) for name in names]
    missing = [name for name, file in zip(names, files, strict=True) if not file.is_file()]
    if missing:
        raise ValueError(f"{index.parent} lacks shards that its index names: {', '.join(missing)}")
    return files


def open_shard(file: Path) -> SafeFile:
    """Memory-map a safetensors file; read only its header."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ValueError("loading weights needs safetensors; pip install 'unmask[models]'") from None
    try:
        return safe_open(file, framework="pt", device="cpu")
    except SafetensorError as error:
        raise ValueError(f"{file} is not a complete safetensors file ({error}); download it again") from None


def stored_tensors(files: list[Path]) -> list[StoredTensor]:
    """List every tensor of the files from their headers alone."""
    found = []
    for file in files:
        with open_shard(file) as shard:
            for key in shard.keys():  # noqa: SIM118 - a safetensors file is not a mapping
                part = shard.get_slice(key)
                found.append(StoredTensor(file, key, tuple(part.get_shape()), part.get_dtype()))
    return found


def check_sizes(stored: Sequence[StoredTensor], *, layers: int, weights: int) -> None:
    """Raise if a model, not yet built, is far larger than its files. `check_tensors` does the rest."""
    held = sum(prod(tensor.shape) for tensor in stored)
    if layers > len(stored) or weights > 2 * held:
        raise ValueError(
            f"config.json describes {layers} layers with {weights} weights, but the files hold {len(stored)} "
            f"tensors with {held} weights; download config.json and the weights again"
        )


def check_tensors(
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, StoredTensor],
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Raise if the stored tensors differ from the model's, and name some of them. Keys are published names.

    Tensors in `dtypes` must have this dtype. All others may have any float dtype.
    """
    misshaped = [
        f"{key} (file {list(stored[key].shape)}, model {list(expected[key])})"
        for key in sorted(expected.keys() & stored.keys())
        if stored[key].shape != expected[key]
    ]
    problems = {
        "missing": sorted(expected.keys() - stored.keys()),
        "unexpected": sorted(stored.keys() - expected.keys()),
        "mis-shaped": misshaped,
        "of unknown dtype": [
            f"{key} ({tensor.dtype})" for key, tensor in stored.items() if not _is_known(tensor, dtypes or {})
        ],
    }
    listed = [f"{kind}: {_some(keys)}" for kind, keys in problems.items() if keys]
    if listed:
        remedy = "download config.json and the weights again"
        raise ValueError(f"the weights do not fit config.json; tensors {'; tensors '.join(listed)}; {remedy}")


def _some(keys: Sequence[str]) -> str:
    """Name the first of some tensors, and count the others."""
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    return ", ".join(keys[:MOST_NAMED]) + more


def _is_known(tensor: StoredTensor, dtypes: Mapping[str, torch.dtype]) -> bool:
    """Return whether a tensor has its required dtype, or any float dtype if none is required."""
    wanted = dtypes.get(tensor.key)
    return tensor.dtype in DTYPES if wanted is None else (DTYPES | NARROW).get(tensor.dtype) == wanted


def widest_dtype(stored: Iterable[StoredTensor]) -> torch.dtype:
    """Return the widest dtype of some tensors."""
    dtypes = iter({DTYPES[tensor.dtype] for tensor in stored})
    widest = next(dtypes, torch.float32)
    for dtype in dtypes:
        widest = torch.promote_types(widest, dtype)
    return widest


def read_tensors(stored: Sequence[tuple[Place, StoredTensor]]) -> Iterator[tuple[Place, Tensor]]:
    """Yield (place, tensor) shard by shard; a tensor stays memory-mapped until it is copied."""
    in_file: dict[Path, list[tuple[Place, StoredTensor]]] = {}
    for place, tensor in stored:
        in_file.setdefault(tensor.file, []).append((place, tensor))
    for file in sorted(in_file):
        with open_shard(file) as shard:
            for place, tensor in in_file[file]:
                yield place, shard.get_tensor(tensor.key)


def first_rows(stored: StoredTensor) -> Tensor:
    """Read some rows of a matrix, enough to distinguish it from another one."""
    with open_shard(stored.file) as shard:
        rows: Tensor = shard.get_slice(stored.key)[:64]
    return rows
