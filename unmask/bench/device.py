"""Choose the device of a benchmark, and change settings of the process during one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unmask.fast import kernels
from unmask.models.checkpoint.load import pick_device


def full_size_device(name: str | None, *, small: bool) -> torch.device:
    """Return a GPU unless `name` is another device. A small run uses the CPU by default."""
    if small:
        return pick_device(name or "cpu")
    if name != "cpu" and pick_device("auto").type == "cpu":
        raise ValueError(
            f"device {name or 'cuda'!r} is not available at full size: there is no GPU on this machine; "
            "add --small for the same in miniature, or --device cpu to wait for the CPU"
        )
    device = pick_device(name or "cuda")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # events are recorded on the current device
    return device


@contextmanager
def torch_path() -> Iterator[None]:
    """Turn off the fused kernels of this library."""
    before = os.environ.get(kernels.SWITCH)
    os.environ[kernels.SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[kernels.SWITCH]
        else:
            os.environ[kernels.SWITCH] = before


@contextmanager
def exact_float32() -> Iterator[None]:
    """Multiply float32 matrices in float32, because TF32 keeps only 10 bits of each mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
