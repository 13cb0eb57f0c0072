"""Overlap runs: while one decodes on the device, others are scored and written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """Raised in a worker after another one failed or was interrupted."""


class DevicePool(Generic[Item, Result]):
    """Threads that share a device. A worker uses it only while it holds `device`."""

    def __init__(self, work: Callable[[Item], Result], workers: int) -> None:
        self._device = Lock()
        self._work = work
        self._workers = workers
        self._stop = Event()

    def map(self, items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item and its result, in order. A single worker runs in the calling thread."""
        if self._workers == 1:
            yield from ((item, self._work(item)) for item in items)
            return
        with ThreadPoolExecutor(self._workers) as threads:
            waiting = [(item, threads.submit(self._work, item)) for item in items]
            try:
                for item, future in waiting:
                    yield item, future.result()
            finally:
                self._stop.set()
                threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def device(self) -> Iterator[None]:
        """Hold the device. Raise if the other work stopped while this one waited."""
        with self._device:
            self.check()
            yield

    def check(self) -> None:
        """Raise if the other work has stopped. Long work calls this from time to time."""
        if self._stop.is_set():
            raise Stopped("the other runs were stopped")
