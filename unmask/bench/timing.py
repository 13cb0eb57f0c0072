"""Clocks and what they ran on."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from statistics import median
from typing import Any

import torch

Work = Callable[[], object]


def milliseconds(work: Work, *, runs: int, warmups: int, device: torch.device) -> float:
    """Median time of a run, as the device counts it; runs follow each other without a pause."""
    for _ in range(warmups):
        work()
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(runs):
            work()
            marks.append(time.perf_counter())
        return median((right - left) * 1e3 for left, right in pairwise(marks))
    events = [_event() for _ in range(runs + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize(device)
    return float(median(left.elapsed_time(right) for left, right in pairwise(events)))


def seconds(work: Work, device: torch.device) -> float:
    """Time of one run as the caller sees it, the device's own work included."""
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> dict[str, object]:
    """Hardware, versions and date."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"cpu ({platform.machine()})",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "python": sys.version.split()[0],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
