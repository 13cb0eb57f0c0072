"""Fused GPU kernels, each with a torch path that says the same. Set UNMASK_KERNELS=0 to do without them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
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


def attends(weight: Tensor, head_size: int) -> bool:
    """Whether a kernel can mix values here, in this precision and with heads of this size."""
    return head_size in (16, 32, 64, 128) and multiplies(weight)


def multiplies(weight: Tensor) -> bool:
    """Whether a kernel can multiply here, in this precision."""
    return (
        weight.is_cuda
        and weight.dtype in (torch.bfloat16, torch.float16)  # in float32 the torch path is the exact one
        and os.environ.get(SWITCH) != "0"
        and _installed()
    )


def device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Makes the tensor's GPU the current one, where kernels run and are recorded; for others, nothing."""
    # torch's own has no types
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
