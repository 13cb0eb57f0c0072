"""Admit requests that name this server, from its own pages and from allowed origins.

A page of another site can make a browser send requests to a server on the same machine. The `Origin` header
reveals such a page. If the page's own name resolves to this machine, the `Host` header reveals it.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from unmask.serving.api_error import ApiError
from unmask.serving.settings import Settings

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:@/\[\]\s]+)(?::\d+)?")
ANY = "*"


class Callers:
    """Refuse requests to another host and requests from pages of another origin."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        scope["state"]["facts"]["code"] = refusal.code
        await JSONResponse(refusal.body(), status_code=refusal.status)(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_our_host(host, self._settings.host, self._settings.allowed_hosts):
            sentence = "the Host header does not name this server; start it with --allowed-host NAME"
            return ApiError(421, sentence, code="wrong_host")
        allowed = self._settings.cors
        if origin is None or ANY in allowed or origin in allowed or urlsplit(origin).netloc == host:
            return None
        sentence = "pages of this origin may not call; start the server with --cors ORIGIN"
        return ApiError(403, sentence, code="wrong_origin")


def is_our_host(header: str, bound: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a Host header names a server that is bound to `bound`.

    A server on a loopback address has loopback names only. Any other server may be called by any address,
    because a page cannot make a browser send an address that is not the server's.
    """
    if ANY in allowed:
        return True
    match = HOST.fullmatch(header)
    if match is None:
        return False
    name = match[1].lower().rstrip(".")
    if name in {each.lower() for each in (bound, f"[{bound}]", *allowed)}:
        return True
    address = _address(name)
    if _is_loopback(bound):
        return name == "localhost" or (address is not None and address.is_loopback)
    return address is not None or name in ("localhost", socket.gethostname().lower())


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """Parse a name as an address; return None if it is none."""
    try:
        return ip_address(name.strip("[]"))
    except ValueError:
        return None


def _is_loopback(bound: str) -> bool:
    address = _address(bound)
    return bound.lower() == "localhost" or (address is not None and address.is_loopback)
