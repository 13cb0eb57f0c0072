"""Process tensors over the vocabulary a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Elements per piece. On a CPU the intermediates of a piece stay in the cache; larger ones would go to new
# pages of memory. On a GPU they take a fraction of the memory of the logits, for a few more launches.
CPU_PIECE = 1 << 19
DEVICE_PIECE = 1 << 24


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply `work` to tensors [..., V] -> [...], some rows at a time."""
    shape = tensors[0].shape[:-1]
    piece = CPU_PIECE if tensors[0].device.type == "cpu" else DEVICE_PIECE
    rows = [tensor.flatten(0, -2) for tensor in tensors]
    # torch sums a single row in another order, so no piece has one row: results must not depend on the batch
    if shape.numel() == 1:
        rows = [torch.cat([row, row]) for row in rows]
    count = min(-(-rows[0].numel() // piece), max(1, len(rows[0]) // 2))
    pieces = zip(*(torch.tensor_split(row, count) for row in rows), strict=True)
    return torch.cat([work(*piece) for piece in pieces])[: shape.numel()].view(shape)
