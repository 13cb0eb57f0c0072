"""Serving: an engine that batches requests step by step, and an HTTP server in front of it."""

from __future__ import annotations

from unmask.serving.engine import Engine
from unmask.serving.errors import Closing, DeadlineExceeded, QueueFull, RequestFailed
from unmask.serving.job import Job, Snapshot
from unmask.serving.limits import Limits

__all__ = ["Closing", "DeadlineExceeded", "Engine", "Job", "Limits", "QueueFull", "RequestFailed", "Snapshot"]
