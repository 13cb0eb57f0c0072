"""Clocks, memory, and what they ran on."""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar

import torch

Work = Callable[[], object]
Out = TypeVar("Out")


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
    events = [_event() for _ in range(_enough(work, runs, device) + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize(device)
    return float(median(left.elapsed_time(right) for left, right in pairwise(events)))


def _enough(work: Work, runs: int, device: torch.device) -> int:
    """So many runs, or fewer if they are long: at least five."""
    return min(runs, max(5, int(1 / timed(work, device)[0])))


class Spans:
    """When some calls began and ended, as the device counts it; read when it has done all of them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.marks: list[tuple[Any, Any]] = []

    def around(self, work: Callable[..., Out]) -> Callable[..., Out]:
        """The same work, watched."""

        def watched(*given: Any) -> Out:
            begin = self._mark()
            out = work(*given)
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
        """Milliseconds from the begin of each call to that of the next."""
        return [self.between(left, right) for (left, _), (right, _) in pairwise(self.marks)]

    def between(self, left: Any, right: Any) -> float:
        """Milliseconds from one mark to another."""
        if self.device.type != "cuda":
            return float(right - left) * 1e3
        return float(left.elapsed_time(right))


def seconds(work: Work, device: torch.device) -> float:
    """Time of one run as the caller sees it, the device's own work included."""
    return timed(work, device)[0]


def timed(work: Callable[[], Out], device: torch.device) -> tuple[float, Out]:
    """The same, and what the run gave."""
    synchronize(device)
    began = time.perf_counter()
    out = work()
    synchronize(device)
    return time.perf_counter() - began, out


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def watch_memory(device: torch.device) -> None:
    """From here on, peaks of GPU memory count."""
    gc.collect()  # other code may leave cycles, which hold on to its logits
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def memory_peaks(device: torch.device, *, above: int) -> dict[str, int]:
    """Peak bytes above so many since `watch_memory`: in tensors, and all that torch took for itself.

    Recordings hold on to memory that no tensor uses in between; only the second number counts it.
    """
    if device.type != "cuda":
        return {"peak_bytes": 0, "taken_bytes": 0}
    peaks = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return dict(zip(("peak_bytes", "taken_bytes"), (peak - above for peak in peaks), strict=True))


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
