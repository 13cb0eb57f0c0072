"""A connection to a Ray cluster, for those who decode on one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

PATIENCE = 10.0  # seconds to wait for a cluster's answer


@contextmanager
def connected(address: str, library: str = "ray", *, log_to_driver: bool = False) -> Iterator[Any]:
    """The module `ray`, with one of its libraries, connected to a cluster by its address.

    "local" starts one on this machine, which ends with the context.
    """
    ray = import_ray(library)
    settings: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=log_to_driver, logging_level="ERROR", **settings)
    except OSError as error:
        raise ValueError(
            f"there is no Ray cluster at {address!r} ({error}); use local to start one"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def import_ray(library: str = "ray") -> Any:
    """The module `ray` with one of its libraries, or a sentence that says how to get it."""
    try:
        import_module(library)
        import ray
    except ImportError:
        raise ValueError("running on a cluster needs Ray; pip install 'unmask[ray]'") from None
    return ray


def _knock(address: str) -> None:
    """Fail where nobody listens: Ray would wait without end."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
