"""A short hash of a model: its class, its config and all of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from unmask.evals.records import digest
from unmask.plugins import source_digest
from unmask.text.prompts import TextModel

PIECE = 1 << 24  # numbers summed at a time
PICKED = 1024  # numbers of a tensor that are hashed in order
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(model: TextModel) -> str:
    """Return a hash of the model, the same wherever it is stored and whether or not it is compiled."""
    state = model.state_dict() if isinstance(model, nn.Module) else {}
    weights = {name: _tensor(tensor) for name, tensor in state.items()}
    info = {**asdict(model.info), "compiled": False}  # the key is kept so that stored fingerprints stay valid
    source = source_digest(type(model))  # hash of the file of a class outside unmask
    return digest([type(model).__name__, info, _config(model), weights, *([source] if source else [])])


def _config(model: TextModel) -> dict[str, Any]:
    """Return the settings of config.json that shape the model, without those about its storage."""
    config = getattr(model, "config", {})
    settings = dict(config) if isinstance(config, Mapping) else {}
    return {key: value for key, value in settings.items() if not key.startswith("_")}


def _tensor(tensor: Tensor) -> list[object]:
    """Return shape, dtype, the sum of all bit patterns and a hash of evenly spaced ones.

    The sum is exact on every device and changes with any weight; the hash changes if weights swap places.
    """
    words = tensor.detach().reshape(-1).view(WORDS[tensor.element_size()])
    total = sum(int(piece.sum(dtype=torch.int64)) for piece in torch.split(words, PIECE))
    picked = words[:: max(1, len(words) // PICKED)].cpu().contiguous().view(torch.uint8)
    return [
        list(tensor.shape),
        str(tensor.dtype),
        total,
        sha256(bytes(picked.view(torch.uint8).tolist())).hexdigest(),
    ]
