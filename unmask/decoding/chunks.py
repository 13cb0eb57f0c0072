"""Work over the vocabulary, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# numbers in a piece: on the CPU what a piece needs stays in the cache, or torch writes every intermediate to
# memory, and to new pages of it; on a device intermediates stay a fraction of the logits, for few launches
CPU_PIECE = 1 << 19
DEVICE_PIECE = 1 << 24


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`work` on tensors [..., V] -> [...], some rows at a time."""
    if torch.compiler.is_compiling():  # which keeps no intermediates anyway
        return work(*tensors)
    shape = tensors[0].shape[:-1]
    piece = CPU_PIECE if tensors[0].device.type == "cpu" else DEVICE_PIECE
    rows = [tensor.flatten(0, -2) for tensor in tensors]
    # torch sums a lone row in another order: no piece may be one, so that a row gives the same in any batch
    if shape.numel() == 1:
        rows = [torch.cat([row, row]) for row in rows]
    count = min(-(-rows[0].numel() // piece), max(1, len(rows[0]) // 2))
    pieces = zip(*(torch.tensor_split(row, count) for row in rows), strict=True)
    return torch.cat([work(*piece) for piece in pieces])[: shape.numel()].view(shape)
