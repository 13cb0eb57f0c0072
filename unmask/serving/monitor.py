"""What the engine tells those who count."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from unmask.serving.job import Job


class Tick(NamedTuple):
    """One step of the engine."""

    rows: int  # that took a step
    waiting: int
    seconds: float
    evaluations: int  # forward passes of the whole batch
    forwards: int  # rows that were in one
    accepted: int  # tokens committed by the rule
    forced: int  # by the fallback
    leftovers: int  # after a budget was spent


class Monitor(Protocol):
    """Somebody who counts; called in the engine's thread, except for `arrived`."""

    def arrived(self, job: Job) -> None: ...

    def stepped(self, tick: Tick) -> None: ...

    def left(self, job: Job, outcome: str) -> None:
        """`outcome`: answered, failed, expired or cancelled."""
        ...


class NoMonitor:
    """Nobody counts."""

    def arrived(self, job: Job) -> None:
        pass

    def stepped(self, tick: Tick) -> None:
        pass

    def left(self, job: Job, outcome: str) -> None:
        pass
