"""Fused GPU kernels, each with an equivalent in torch. UNMASK_KERNELS=0 turns them off."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "UNMASK_KERNELS"
MOST_CANDIDATES = 32  # the kernel finds candidates one by one, which is slow for many
SHARED_MEMORY = 227 * 1024  # bytes that a program with the largest tiles needs
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def usable(logits: Tensor, top_k: int) -> bool:
    """Whether a kernel can summarize these logits [..., V] on this machine."""
    return (
        logits.is_cuda
        and logits.dtype in DTYPES
        and top_k <= MOST_CANDIDATES
        and os.environ.get(SWITCH) != "0"
        and _installed()
    )


def attends(weight: Tensor, head_size: int) -> bool:
    """Whether a kernel can compute attention in the weight's dtype with heads of this size."""
    return head_size in (16, 32, 64, 128) and multiplies(weight)


def multiplies(weight: Tensor) -> bool:
    """Whether a kernel can multiply by this weight."""
    return (
        weight.is_cuda
        and weight.dtype in (torch.bfloat16, torch.float16)  # in float32 only torch is exact
        and os.environ.get(SWITCH) != "0"
        and _installed()
    )


def multiplies_narrow(weight: Tensor, inputs: torch.dtype) -> bool:
    """Whether a kernel can multiply inputs of this dtype by a quantized weight or a stack of experts.

    The tiles need the shared memory and the copy engine of a Hopper GPU, and int4 needs 16-bit inputs.
    """
    if not weight.is_cuda or os.environ.get(SWITCH) == "0" or not _installed():
        return False
    if weight.dtype == torch.uint8 and inputs not in (torch.bfloat16, torch.float16):
        return False
    memory = torch.cuda.get_device_properties(weight.device).shared_memory_per_multiprocessor
    capable = torch.cuda.get_device_capability(weight.device) >= (9, 0) and memory >= SHARED_MEMORY
    return capable and find_spec("triton.tools.tensor_descriptor") is not None  # since Triton 3.4


def device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's GPU the current device for launches and graph capture; no-op on the CPU."""
    # torch does not type this function
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call, no-any-return, unused-ignore]


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
