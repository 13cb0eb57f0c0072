"""Clocks, memory counters and facts about the machine."""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

import torch

Work = Callable[[], object]
Out = TypeVar("Out")


def milliseconds(work: Work, *, runs: int, warmups: int, device: torch.device) -> float:
    """Return the median time of a run, by the device's clock. Runs follow each other without a pause."""
    for _ in range(warmups):
        work()
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(runs):
            work()
            marks.append(time.perf_counter())
        return median((right - left) * 1e3 for left, right in pairwise(marks))
    events = [_event() for _ in range(_enough(work, runs, device) + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize(device)
    return float(median(left.elapsed_time(right) for left, right in pairwise(events)))


def _enough(work: Work, runs: int, device: torch.device) -> int:
    """Return the number of runs that fit into a second: at least five, but at most `runs`."""
    return min(runs, max(5, int(1 / timed(work, device)[0])))


class Spans:
    """When some calls began and ended, by the device's clock. Call `synchronize` before you read it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[Any, Any]] = []

    def around(self, work: Callable[..., Out]) -> Callable[..., Out]:
        """Return `work` with a mark before and after each call."""

        def watched(*given: Any, **named: Any) -> Out:
            begin = self._mark()
            out = work(*given, **named)
            self.marks.append((begin, self._mark()))
            return out

        return watched

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = _event()
        event.record()
        return event

    def steps(self) -> list[float]:
        """Return the milliseconds from the start of each call to the start of the next."""
        return [self.between(left, right) for (left, _), (right, _) in pairwise(self.marks)]

    def between(self, left: Any, right: Any) -> float:
        """Return the milliseconds from one mark to another."""
        if self.device.type != "cuda":
            return float(right - left) * 1e3
        return float(left.elapsed_time(right))


def seconds(work: Work, device: torch.device) -> float:
    """Return the time of one run by the caller's clock, including the device's work."""
    return timed(work, device)[0]


def timed(work: Callable[[], Out], device: torch.device) -> tuple[float, Out]:
    """Return the time of one run by the caller's clock, and its result."""
    synchronize(device)
    began = time.perf_counter()
    out = work()
    synchronize(device)
    return time.perf_counter() - began, out


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def watch_memory(device: torch.device) -> None:
    """Start counting the peaks of GPU memory from here."""
    gc.collect()  # other code may leave reference cycles that hold logits
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def memory_peaks(device: torch.device, *, above: int) -> dict[str, int]:
    """Return the peaks since `watch_memory`, less `above`: bytes in tensors, and bytes that torch reserved.

    CUDA graphs reserve memory that no tensor uses between replays. Only the second number counts it.
    """
    if device.type != "cuda":
        return {"peak_bytes": 0, "taken_bytes": 0}
    peaks = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return dict(zip(("peak_bytes", "taken_bytes"), (peak - above for peak in peaks), strict=True))


def machine(device: torch.device) -> dict[str, object]:
    """Return the hardware, the versions and the date."""
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


def machine_line(machine: Mapping[str, Any]) -> str:
    """Return the device, the versions and the date in one line."""
    versions = ", ".join(f"{key} {machine[key]}" for key in ("torch", "cuda", "triton") if machine[key])
    return f"{machine['device']}, {versions}, {machine['date']}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
