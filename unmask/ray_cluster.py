"""Connect to a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

TIMEOUT = 10.0  # seconds to wait for a cluster to answer


@contextmanager
def connected(
    address: str,
    library: str = "ray",
    *,
    log_to_driver: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Yield the module `ray`, with one of its libraries, connected to the cluster at `address`.

    "local" starts a cluster on this machine that ends with the context. `variables` are the environment
    variables of the workers.
    """
    ray = import_ray(library)
    settings: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    if variables:
        settings["runtime_env"] = {"env_vars": dict(variables)}
    try:
        _check_reachable(address)
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
    """Import `ray` and one of its libraries; raise with install instructions if it is missing."""
    try:
        import_module(library)
        import ray
    except ImportError:
        raise ValueError("running on a cluster needs Ray; pip install 'unmask[ray]'") from None
    return ray


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at the address; Ray itself would wait forever."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), timeout=TIMEOUT).close()
