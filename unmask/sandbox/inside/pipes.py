"""Messages over pipes: a length, then that many bytes."""

from __future__ import annotations

import os
import struct

LENGTH = struct.Struct("<I")


class Closed(BaseException):
    """The other end of a pipe is closed."""


def send(channel: int, message: bytes) -> None:
    """Write a whole message."""
    view = memoryview(LENGTH.pack(len(message)) + message)
    try:
        while view:
            view = view[os.write(channel, view) :]
    except BrokenPipeError:
        raise Closed from None


def receive(channel: int, longest: int = (1 << 32) - 1) -> bytes:
    """Read a whole message; raise ValueError if it is longer than allowed."""
    length = LENGTH.unpack(_read(channel, LENGTH.size))[0]
    if length > longest:
        raise ValueError(f"a message of {length} bytes")
    return _read(channel, length)


def _read(channel: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(channel, min(length, 1 << 20))
        if not part:
            raise Closed
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def leave_streams() -> None:
    """Redirect the standard streams to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
