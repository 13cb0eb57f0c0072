"""Middleware that gives each request an id, a log line and metrics."""

from __future__ import annotations

import logging
import re
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unmask.serving.api_error import as_api_error
from unmask.serving.logs import log_failure
from unmask.serving.metrics import Metrics

log = logging.getLogger(__name__)
GOOD_ID = re.compile(r"[\w.\-]{1,128}", re.ASCII)
QUIET = ("/healthz", "/readyz", "/metrics")
QUOTING = ("prompt", "text", "error")  # facts that quote the request or its answer
HUNG_UP = 499


class Access:
    """Give every request an id, and report its outcome to the log and the metrics."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics | None, *, answer_id: bool = True, log_prompts: bool = False
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._answer_id = answer_id  # False if a proxy in front of the server adds the id
        self._log_prompts = log_prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        facts: dict[str, Any] = {"status": HUNG_UP}  # reported if no response starts
        scope.setdefault("state", {}).update(request_id=request_id, facts=facts)
        began = perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                if self._answer_id:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log_failure(log, error, whole=self._log_prompts, request_id=request_id)
            if facts["status"] != HUNG_UP:  # a response has already started
                raise
            api_error = as_api_error(error)
            await JSONResponse(api_error.body(), status_code=api_error.status)(scope, receive, send_with_id)
        finally:
            self._report(scope, facts, request_id, perf_counter() - began)

    def _report(self, scope: Scope, facts: dict[str, Any], request_id: str, seconds: float) -> None:
        path = _known_path(scope)
        if self._metrics is not None:
            self._metrics.requested(path, facts["status"], seconds)
        if path not in QUIET:
            shown = {name: fact for name, fact in facts.items() if self._log_prompts or name not in QUOTING}
            fields = {"request_id": request_id, "method": scope["method"], "path": path, **shown}
            log.info("request", extra={**fields, "seconds": round(seconds, 6)})


def _known_path(scope: Scope) -> str:
    """Return the route's path, or "other" for unknown paths, which would create endless metrics."""
    route = scope.get("route")
    return str(getattr(route, "path", "other"))


def _request_id(headers: Headers) -> str:
    sent = headers.get("x-request-id", "")
    return sent if GOOD_ID.fullmatch(sent) else uuid4().hex
