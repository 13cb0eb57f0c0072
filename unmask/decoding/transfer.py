"""Copies between host and device that do not wait for each other, and the widest numbers of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)  # types of devices; mps is an Apple GPU


def widest_float(device: torch.device) -> torch.dtype:
    """Return float64, or float32 if the device has no float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor without waiting. From pageable memory, the host would wait until the GPU is idle."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_host(tensor: Tensor) -> Callable[[], Tensor]:
    """Start a copy to the host. The returned function waits for the copy, not for work queued later."""
    if not tensor.is_cuda:
        return lambda: tensor
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
    arrived = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Tensor:
        arrived.synchronize()
        return copied

    return wait


def read_together(*tensors: Tensor) -> list[Any]:
    """Return tensors of one shape as lists; the host waits for their device once."""
    on_host = tensors if tensors[0].is_cpu else torch.stack(tensors).cpu()
    return [tensor.tolist() for tensor in on_host]
