"""Work over the vocabulary, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CPU_ROWS = 16  # what a few rows need stays in the cache, or torch writes every intermediate to memory
DEVICE_ROWS = 64  # few launches, and intermediates of a fraction of the logits


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`work` on tensors [..., V] -> [...], some rows at a time."""
    size = CPU_ROWS if tensors[0].device.type == "cpu" else DEVICE_ROWS
    pieces = zip(*(torch.split(tensor.flatten(0, -2), size) for tensor in tensors), strict=True)
    return torch.cat([work(*piece) for piece in pieces]).view(tensors[0].shape[:-1])
