"""Work over the vocabulary, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CPU_ROWS = 16


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`work` on tensors [..., V] -> [...].

    On the CPU a few rows stay in the cache, where torch would write every intermediate of all rows to memory.
    """
    shape = tensors[0].shape[:-1]
    if tensors[0].device.type != "cpu":
        return work(*tensors)
    pieces = zip(*(torch.split(tensor.flatten(0, -2), CPU_ROWS) for tensor in tensors), strict=True)
    return torch.cat([work(*piece) for piece in pieces]).view(shape)
