"""Errors in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.serving.errors import Closing, DeadlineExceeded, QueueFull, RequestFailed

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class ApiError(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON body of this error."""
        kind = TYPES.get(self.status, "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def as_api_error(error: Exception) -> ApiError:
    """Convert an exception to the error that the client sees."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", headers={"Retry-After": str(error.retry_after)})
    if isinstance(error, Closing):
        return ApiError(503, str(error), code="shutting_down", headers={"Retry-After": "1"})
    if isinstance(error, DeadlineExceeded):
        return ApiError(408, str(error), code="deadline_exceeded")
    if isinstance(error, RequestFailed):
        return ApiError(500, f"the request failed: {error}", code="request_failed")
    if isinstance(error, ValueError):
        return ApiError(400, str(error))
    return ApiError(500, "an internal error; the log has it under this request's x-request-id")
