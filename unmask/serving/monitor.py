"""The engine's hooks for metrics."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from unmask.serving.job import Job


class Tick(NamedTuple):
    """One step of the engine."""

    rows: int  # rows that took a step
    seconds: float  # since the last step, or since work arrived
    evaluations: int  # forward passes of the whole batch
    forwards: int  # rows in those forward passes
    accepted: int  # tokens committed by the rule
    forced: int  # tokens committed by the fallback
    leftovers: int  # tokens filled in after a budget was spent
    waiting: int = 0  # requests not admitted yet


class Monitor(Protocol):
    """Receives the engine's events, in the engine's thread except for `arrived`."""

    def arrived(self, job: Job) -> None: ...

    def stepped(self, tick: Tick) -> None: ...

    def left(self, job: Job, outcome: str) -> None:
        """Called when a job ends; its outcome is answered, failed, expired or cancelled."""
        ...


class NoMonitor:
    """Ignores all events."""

    def arrived(self, job: Job) -> None:
        pass

    def stepped(self, tick: Tick) -> None:
        pass

    def left(self, job: Job, outcome: str) -> None:
        pass
