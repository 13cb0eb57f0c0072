"""Work on several things at a time: while one has the device, others are scored and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):
    """Work that ends because other work failed or was interrupted."""


class DevicePool(Generic[Item, Result]):
    """Workers that share a device: whoever holds `device` may use it."""

    def __init__(self, work: Callable[[Item], Result], workers: int) -> None:
        self.device = Lock()
        self._work = work
        self._workers = workers
        self._stop = Event()

    def map(self, items: Sequence[Item]) -> Iterator[tuple[Item, Result]]:
        """What came of the items, in their order; one worker is the caller itself."""
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

    def check(self) -> None:
        """To be called by long work from time to time; raises where it must end."""
        if self._stop.is_set():
            raise Stopped("the other runs were stopped")
