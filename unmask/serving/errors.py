"""Errors that end a request without an answer."""

from __future__ import annotations


class QueueFull(RuntimeError):
    """The queue is full."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after} seconds")
        self.retry_after = retry_after  # seconds


class Closing(RuntimeError):
    """The engine accepts no new requests."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; send the request to another one")


class DeadlineExceeded(RuntimeError):
    """The answer was not ready in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request took longer than its deadline of {seconds:g} seconds; ask for less")


class RequestFailed(RuntimeError):
    """The model or the sampler raised; see `__cause__`."""
