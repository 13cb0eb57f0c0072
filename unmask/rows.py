"""Work over the vocabulary, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CPU_ROWS = 16  # what a few rows need stays in the cache, or torch writes every intermediate to memory
DEVICE_ROWS = 64  # few launches, and intermediates of a fraction of the logits


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`work` on tensors [..., V] -> [...], some rows at a time."""
    shape = tensors[0].shape[:-1]
    size = CPU_ROWS if tensors[0].device.type == "cpu" else DEVICE_ROWS
    rows = [tensor.flatten(0, -2) for tensor in tensors]
    # torch sums a lone row in another order: no piece may be one, so that a row gives the same in any batch
    if shape.numel() == 1:
        rows = [torch.cat([row, row]) for row in rows]
    count = -(-len(rows[0]) // size)
    pieces = zip(*(torch.tensor_split(row, count) for row in rows), strict=True)
    return torch.cat([work(*piece) for piece in pieces])[: shape.numel()].view(shape)
