"""The page that shows the denoising, as the server sends it: a few static files, and no way out for them."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from unmask.serving.api_error import ApiError

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# scripts and styles of this server alone, and calls to it alone
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
    """The page at /, and its files under /page; they hold nothing secret and ask for no key."""
    router = APIRouter(include_in_schema=False)
    held = {
        file.name: file.read_bytes()
        for file in (files("unmask") / "trace" / "web").iterdir()
        if file.name.rpartition(".")[2] in TYPES
    }

    def answer(name: str) -> Response:
        return Response(held[name], media_type=TYPES[name.rpartition(".")[2]], headers=HEADERS)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index() -> Response:
        """The page."""
        return answer("index.html")

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def file(name: str) -> Response:
        """One of its files."""
        if name not in held:
            raise ApiError(404, f"the page has no file {name!r}")
        return answer(name)

    return router
