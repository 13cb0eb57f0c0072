"""Bind the server's sockets before loading the model."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from time import sleep
from typing import Any

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_SECONDS = 0.05


class Listener(socket.socket):
    """A socket that turns clients away while the process has no descriptor left for them.

    Otherwise asyncio would retry and log thousands of times a second. The socket releases a spare descriptor
    to accept the waiting client and close its connection.
    """

    def __init__(self, *kind: Any, **more: Any) -> None:
        super().__init__(*kind, **more)
        self.out_of_descriptors: Callable[[OSError], None] = lambda error: None
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            self.out_of_descriptors(error)
        self._turn_away()
        raise BlockingIOError  # asyncio tries again when the next client arrives

    def close(self) -> None:
        self._release()
        super().close()

    def _turn_away(self) -> None:
        self._release()
        try:
            super().accept()[0].close()
        except BlockingIOError:
            pass
        except OSError:
            sleep(RETRY_SECONDS)  # still no descriptor: do not try again at once
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _release(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


@contextmanager
def bound(host: str, port: int) -> Iterator[list[Listener]]:
    """Yield a bound socket per address of a host; it accepts no connections until it listens."""
    with ExitStack() as stack:
        sockets: list[Listener] = []
        for family, address in _addresses(host, port):
            opened = stack.enter_context(Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP))
            try:
                _bind(opened, address)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:  # a name may resolve to addresses of other machines
                    continue
                raise ValueError(_refusal(error, host, port)) from None
            sockets.append(opened)
        if not sockets:
            raise ValueError(_no_address(host, os.strerror(errno.EADDRNOTAVAIL)))
        yield sockets


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ValueError(_no_address(host, getattr(error, "strerror", None) or str(error))) from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in addresses))


def _bind(opened: socket.socket, address: Any) -> None:
    if os.name == "posix":  # on other systems two servers could share a port
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if opened.family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has its own socket
    opened.bind(address)


def _refusal(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port must be free on {host}, got {port}, where another server listens; choose another one"
    return f"--host and --port must be open to this user, got {host}:{port} ({error.strerror})"


def _no_address(host: str, reason: str) -> str:
    return f"--host must be an address of this machine, got {host!r} ({reason}); 0.0.0.0 means all of them"
