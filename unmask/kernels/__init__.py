"""Fused GPU kernels, each with a torch path that says the same. Set UNMASK_KERNELS=0 to do without them."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "UNMASK_KERNELS"
MOST_CANDIDATES = 32  # a kernel finds its candidates one by one
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def usable(logits: Tensor, top_k: int) -> bool:
    """Whether a kernel can summarize these logits [..., V] here."""
    return (
        logits.is_cuda
        and logits.dtype in DTYPES
        and top_k <= MOST_CANDIDATES
        and os.environ.get(SWITCH) != "0"
        and _installed()
    )


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
