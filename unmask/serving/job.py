"""A request as its sender sees it: snapshots of the canvas, then the answer. Thread-safe."""

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
from unmask.serving.work import Work
from unmask.text.generate import Generation
from unmask.text.infill import Infilling
from unmask.types import Step

Answer = Generation | Infilling
UNREAD = 256  # buffered detailed snapshots; a slow reader misses the oldest


class Snapshot(NamedTuple):
    """The canvas after a step."""

    step: int
    tokens: Tensor  # [N] on the CPU, masks where nothing is committed
    window: slice  # the columns that were predicted
    guess: Tensor  # [W] on the CPU, current best token of each column
    taken: Step | None = None  # the step and its predictions, if requested
    look: Look | None = None


@dataclass(eq=False, slots=True)
class Job:
    """One request in the engine.

    Only the latest snapshot is kept, so a slow reader blocks nothing. With `candidates=k`, snapshots also
    carry the top k tokens per position, and up to 256 are buffered.
    """

    work: Work
    seconds: float | None = None  # time limit, from arrival to answer
    candidates: int = 0
    id: str = field(default_factory=lambda: uuid4().hex)
    arrived: float = field(default_factory=perf_counter)
    admitted: float | None = None
    future: Future[Answer] = field(default_factory=Future)
    _unread: deque[Snapshot] = field(init=False)
    _listener: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._unread = deque(maxlen=UNREAD if self.candidates else 1)

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer; raise the error if the request failed."""
        return self.future.result(timeout)

    def cancel(self) -> None:
        """Stop decoding it; does nothing if the answer is ready."""
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
        """Seconds in the queue, so far or until admission."""
        return (perf_counter() if self.admitted is None else self.admitted) - self.arrived

    def expired(self, now: float) -> bool:
        """Whether its time limit has passed."""
        return self.seconds is not None and now - self.arrived > self.seconds

    def publish(self, snapshot: Snapshot) -> None:
        """Publish a snapshot. For the engine."""
        self._unread.append(snapshot)
        if self._listener is not None:
            self._listener()

    def unread(self) -> Iterator[Snapshot]:
        """Yield the buffered snapshots since the last call."""
        while self._unread:
            yield self._unread.popleft()

    def finish(self, outcome: Answer | Exception) -> bool:
        """Set the answer or the error; return False if the job was cancelled. For the engine."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:  # cancelled meanwhile
            return False
        return True
