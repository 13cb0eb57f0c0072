"""Settings of the process for the length of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unmask.fast import kernels


@contextmanager
def torch_path() -> Iterator[None]:
    """Without kernels of our own."""
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
    """Products of float32 matrices in float32; TF32 would keep 10 bits of each number."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
