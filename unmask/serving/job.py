"""A request as its sender sees it: the canvas while it fills, and the answer. All methods are thread-safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple
from uuid import uuid4

from torch import Tensor

from unmask.serving.look import Look
from unmask.serving.request import Request
from unmask.text.generate import Generation
from unmask.text.infill import Infilling
from unmask.types import Step

Answer = Generation | Infilling
MOST_SNAPSHOTS = 256  # buffered, if they have candidates; a slow reader misses the oldest


class Snapshot(NamedTuple):
    """A canvas after a step."""

    step: int
    tokens: Tensor  # [N] on the CPU, masks where nothing is committed
    window: slice  # columns that the model predicted
    guess: Tensor  # [W] on the CPU, the token that each window column would commit now
    taken: Step | None = None  # the step, if the job has candidates
    look: Look | None = None  # candidates and signals of the step
    revocable: slice | None = None  # columns that a later step may mask or rewrite


@dataclass(eq=False, slots=True)
class Job:
    """One request in the engine.

    Only the latest snapshot is kept, so a slow reader delays nothing. With `candidates=k`, snapshots also
    carry the top k tokens per position, and up to 256 of them are buffered.
    """

    request: Request
    seconds: float | None = None  # deadline, counted from arrival; None means no limit
    candidates: int = 0
    id: str = field(default_factory=lambda: uuid4().hex)
    arrived: float = field(default_factory=perf_counter)
    admitted: float | None = None
    future: Future[Answer] = field(default_factory=Future)
    _snapshots: deque[Snapshot] = field(init=False)
    _listener: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._snapshots = deque(maxlen=MOST_SNAPSHOTS if self.candidates else 1)

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer; raise the error of a job that failed."""
        return self.future.result(timeout)

    def cancel(self) -> None:
        """Cancel the job; a finished job keeps its answer."""
        self.future.cancel()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` in the engine's thread after every step and at the end."""
        self._listener = listener
        self.future.add_done_callback(lambda _: listener())

    @property
    def is_watched(self) -> bool:
        return self._listener is not None or self.candidates > 0

    @property
    def queue_seconds(self) -> float:
        """Seconds from arrival to admission, or to now if it still waits."""
        return (perf_counter() if self.admitted is None else self.admitted) - self.arrived

    def expired(self, now: float) -> bool:
        """Return whether its deadline has passed."""
        return self.seconds is not None and now - self.arrived > self.seconds

    def publish(self, snapshot: Snapshot) -> None:
        """Buffer a snapshot and call the listener. For the engine only."""
        self._snapshots.append(snapshot)
        if self._listener is not None:
            self._listener()

    def drain_snapshots(self) -> Iterator[Snapshot]:
        """Yield the buffered snapshots and drop them."""
        while self._snapshots:
            yield self._snapshots.popleft()

    def finish(self, outcome: Answer | Exception) -> bool:
        """Set the answer or the error; return False if the job has already ended. For the engine only."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:  # cancelled or finished before
            return False
        return True
