"""Logging: JSON lines for programs, plain lines for people."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone

USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Format a record as JSON, with all fields passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **{name: value for name, value in vars(record).items() if _is_extra(name)},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainLines(logging.Formatter):
    """Format a record for a person at a terminal, with a URL on its own line."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if _is_extra(name)}
        url = extra.pop("url", None)
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        facts = [f"{name}={_printable(str(value))}" for name, value in extra.items() if value is not None]
        lines = ["  ".join([time, _printable(record.getMessage()), *facts])]
        if url is not None:
            lines += [
                "",
                f"    {url}",
                "",
                "Open this page, or add /v1 for a client. Ctrl-C stops the server.",
            ]
        if record.exc_info:
            lines += map(_printable, self.formatException(record.exc_info).splitlines())
        return "\n".join(lines)


def _printable(text: str) -> str:
    """Quote text with control characters, so that none of them reaches the terminal."""
    return text if text.isprintable() else repr(text)


def _is_extra(name: str) -> bool:
    """Return whether a field came from `extra`; other libraries add fields with a leading underscore."""
    return name not in USUAL and not name.startswith("_")


def log_failure(log: logging.Logger, error: BaseException, *, whole: bool, **fields: object) -> None:
    """Log a failed request; include the message only if `whole`, because it may quote the request."""
    if whole:
        log.error("a request failed", exc_info=error, extra=fields)
        return
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("a request failed", extra={**fields, "exception": type(error).__name__, "frames": frames})


def _without_traceback(record: logging.LogRecord) -> bool:
    """Drop uvicorn's traceback of an error that we have logged."""
    record.exc_info = None
    return True


def log_lines(level: int = logging.INFO, *, json: bool = True) -> None:
    """Log to standard error, as JSON or as plain lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else PlainLines())
    for name in ("unmask", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
    logging.getLogger("uvicorn.error").addFilter(_without_traceback)
    logging.getLogger("uvicorn.access").disabled = True  # we log our own, more detailed line
