"""Counters, gauges and histograms for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from unmask.serving.engine import Engine
from unmask.serving.job import Job
from unmask.serving.monitor import Tick
from unmask.serving.replies import new_tokens

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
STEP_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
REQUEST_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Metrics of one server, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "unmask", "registry": self.registry}
        self._requests = Counter("requests", "HTTP requests.", ("path", "status"), **own)
        self._request_seconds = Histogram(
            "request_seconds",
            "Time from a request to the end of its answer.",
            ("path",),
            buckets=REQUEST_SECONDS,
            **own,
        )
        self._waiting = Gauge("queue_requests", "Waiting requests.", **own)
        self._running = Gauge("running_requests", "Requests being decoded.", **own)
        self._arrivals = Counter("arrivals", "Requests accepted by the engine.", **own)
        self._queue_seconds = Histogram(
            "queue_seconds",
            "Time from arrival to the first step.",
            buckets=REQUEST_SECONDS,
            **own,
        )
        self._rows = Histogram("batch_rows", "Rows per step.", buckets=ROWS, **own)
        self._step_seconds = Histogram(
            "step_seconds",
            "Time of one step of the engine.",
            buckets=STEP_SECONDS,
            **own,
        )
        self._steps = Counter("steps", "Reverse steps, over all rows.", **own)
        self._evaluations = Counter("evaluations", "Forward passes of the batch.", **own)
        self._forwards = Counter("forwards", "Forward passes, over all rows.", **own)
        self._commits = Counter("commits", "Committed tokens, by cause.", ("by",), **own)
        self._jobs = Counter("jobs", "Requests that left the engine.", ("outcome",), **own)
        self._tokens = Counter("tokens", "Tokens of answered requests.", ("kind",), **own)

    def watch(self, engine: Engine) -> None:
        """Report an engine's waiting and running requests."""
        self._waiting.set_function(lambda: engine.waiting)
        self._running.set_function(lambda: engine.running)

    def arrived(self, job: Job) -> None:
        self._arrivals.inc()

    def stepped(self, tick: Tick) -> None:
        self._rows.observe(tick.rows)
        self._step_seconds.observe(tick.seconds)
        self._steps.inc(tick.rows)
        self._evaluations.inc(tick.evaluations)
        self._forwards.inc(tick.forwards)
        for by, tokens in (("rule", tick.accepted), ("force", tick.forced), ("leftover", tick.leftovers)):
            self._commits.labels(by).inc(tokens)

    def left(self, job: Job, outcome: str) -> None:
        self._jobs.labels(outcome).inc()
        self._queue_seconds.observe(job.queue_seconds)
        if outcome == "answered":
            self._tokens.labels("prompt").inc(job.request.prompt_tokens)
            self._tokens.labels("new").inc(new_tokens(job.result()))

    def requested(self, path: str, status: int, seconds: float) -> None:
        """Count a finished HTTP request."""
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        """Return all metrics in the Prometheus format."""
        return generate_latest(self.registry)
