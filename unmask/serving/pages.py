"""Serve the page that shows the denoising: a few static files under a strict content policy."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from unmask.serving.api_error import ApiError
from unmask.trace.html import template

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
}
# load scripts, styles and images from this server only, and call no other
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> APIRouter:
    """Return the routes of the page at / and of its files under /page; they need no key."""
    router = APIRouter(include_in_schema=False)
    contents = {
        file.name: file.read_bytes()
        for file in (files("unmask") / "trace" / "web").iterdir()
        if file.name.rpartition(".")[2] in TYPES
    }
    contents["trace.html"] = template().encode()  # a template that the page fills with its runs

    def answer(name: str) -> Response:
        return Response(contents[name], media_type=TYPES[name.rpartition(".")[2]], headers=HEADERS)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index() -> Response:
        """Return the page."""
        return answer("index.html")

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def file(name: str) -> Response:
        """Return a file of the page."""
        if name not in contents:
            raise ApiError(404, f"the page has no file {name!r}")
        return answer(name)

    return router
