"""Limit the number of connections, and how long a client may keep one waiting."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from time import monotonic
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.serving.api_error import ApiError

log = logging.getLogger(__name__)
HEALTH = ("/healthz", "/readyz", "/metrics")
RESERVED = 32  # descriptors for files and for the spare connections
SPARE = 16  # connections beyond the limit, for health checks only
FEWEST = 8
LOG_SECONDS = 60.0  # least time between two warnings


class Connections:
    """All connections of a server; if there are too many, the one that waits longest is dropped."""

    def __init__(self, most: int, *, header_seconds: float, stall_seconds: float) -> None:
        self.most = most
        self.header_seconds = header_seconds
        self.stall_seconds = stall_seconds
        self._waiting: dict[Connection, None] = {}  # connections that wait for their client, longest first
        self._open = 0
        self._logged = -LOG_SECONDS

    def fit_descriptors(self) -> None:
        """Lower the limit to the number of descriptors that this process may still open."""
        free = free_descriptors()
        if free is not None:
            self.most = min(self.most, max(FEWEST, free - RESERVED))

    def opened(self, connection: Connection) -> None:
        """Count a connection. If there are too many, drop another one, or else restrict or drop this one."""
        self._open += 1
        self.waits(connection)
        if self._open <= self.most:
            return
        self.tell("too many connections; the limit is %d", self.most)
        if self.make_room(keep=connection):
            return
        if self._open > self.most + SPARE:
            connection.drop()
        else:
            connection.app = HealthOnly(connection.app)

    def closed(self, connection: Connection) -> None:
        self._open -= 1
        self._waiting.pop(connection, None)

    def waits(self, connection: Connection) -> None:
        """Note that a connection waits for its client."""
        self._waiting.setdefault(connection)

    def works(self, connection: Connection) -> None:
        """Note that a connection has received its whole request."""
        self._waiting.pop(connection, None)

    def make_room(self, keep: Connection | None = None) -> bool:
        """Drop the connection that waits longest for its client; return False if none waits."""
        oldest = next((each for each in self._waiting if each is not keep), None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        oldest.drop()
        return True

    def out_of_descriptors(self, error: OSError) -> None:
        """Make room after a connection could not be accepted."""
        self.tell("a connection could not be accepted: %s", error.strerror)
        self.make_room()

    def tell(self, message: str, fact: object) -> None:
        """Log a warning, at most once a minute."""
        if monotonic() - self._logged >= LOG_SECONDS:
            self._logged = monotonic()
            log.warning(message, fact, extra={"connections": self._open})


class Connection(H11Protocol):
    """A connection whose client must send its headers, and read its answer, in time."""

    def __init__(self, *, all_connections: Connections, **server: Any) -> None:
        super().__init__(**server)
        self.app: ASGIApp
        self._all = all_connections
        self._idle: asyncio.TimerHandle | None = None  # runs until the next request arrives
        self._stalled: asyncio.TimerHandle | None = None  # runs while the client does not read
        self._unread = 0  # unsent bytes of the answer when the idle timer started

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        self._all.opened(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.closed(self)
        for timer in (self._idle, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._all.stall_seconds, self.drop)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def drop(self) -> None:
        """Close the connection at once, even if data is still to be sent."""
        self.transport.abort()

    def _watch(self) -> None:
        """Start or stop the idle timer, and note whether the client must act next."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._idle is None:
            self._start_timer()
        elif not idle and self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if idle or self.cycle.more_body:
            self._all.waits(self)
        else:
            self._all.works(self)

    def _start_timer(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._idle = self.loop.call_later(self._all.header_seconds, self._late)

    def _late(self) -> None:
        """Close a connection without a new request, unless its client is still reading the last answer."""
        unread = self.transport.get_write_buffer_size()
        if 0 < unread < self._unread:
            self._start_timer()
        elif unread or self.transport.is_closing():
            self.drop()
        else:
            self.transport.close()


class HealthOnly:
    """Answers health checks, and refuses everything else because there are too many connections."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        refusal = ApiError(503, "too many connections; try again later", code="too_many_connections")
        headers = {"Retry-After": "1", "Connection": "close"}
        await JSONResponse(refusal.body(), status_code=503, headers=headers)(scope, receive, send)


def free_descriptors() -> int | None:
    """Return how many more files this process may open, or None if that is unlimited or unknown."""
    try:
        import resource
    except ModuleNotFoundError:  # not a Unix
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = next((path for path in ("/proc/self/fd", "/dev/fd") if Path(path).is_dir()), None)
    if most == resource.RLIM_INFINITY or folder is None:
        return None
    return int(most) - len(os.listdir(folder))


def raise_descriptor_limit(most: int) -> None:
    """Let this process open `most` files, as far as the system allows."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
