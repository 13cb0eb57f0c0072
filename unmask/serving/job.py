"""A request as its sender sees it: the canvas while it fills, and the answer. Safe to use from any thread."""

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
UNREAD = 256  # detailed snapshots that wait for a reader; a slower one misses the oldest


class Snapshot(NamedTuple):
    """A canvas after a step."""

    step: int
    tokens: Tensor  # [N] on the CPU, masks where nothing is committed
    window: slice  # the columns that were looked at
    guess: Tensor  # [W] on the CPU, what each of them would take now
    taken: Step | None = None  # the step itself, and what it saw, where they were asked for
    look: Look | None = None


@dataclass(eq=False, slots=True)
class Job:
    """One request in the engine.

    Only the latest snapshot is kept, so a slow reader holds up nothing. With `candidates`, so many of them a
    position, snapshots say more, and some of them wait for the reader.
    """

    work: Work
    seconds: float | None = None  # from arrival to answer
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
        """Wait for the answer; raises what kept it from coming."""
        return self.future.result(timeout)

    def cancel(self) -> None:
        """Stop the work on it; nothing happens where the answer is there already."""
        self.future.cancel()

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called, in the engine's thread, after every step and at the end."""
        self._listener = listener
        self.future.add_done_callback(lambda _: listener())

    @property
    def is_watched(self) -> bool:
        return self._listener is not None or self.candidates > 0

    @property
    def queue_seconds(self) -> float:
        """How long it waited, so far or until it was admitted."""
        return (perf_counter() if self.admitted is None else self.admitted) - self.arrived

    def expired(self, now: float) -> bool:
        """Whether its time is over."""
        return self.seconds is not None and now - self.arrived > self.seconds

    def publish(self, snapshot: Snapshot) -> None:
        """Show how far it is; for the engine."""
        self._unread.append(snapshot)
        if self._listener is not None:
            self._listener()

    def unread(self) -> Iterator[Snapshot]:
        """The snapshots since the last call, as far as they were kept."""
        while self._unread:
            yield self._unread.popleft()

    def finish(self, outcome: Answer | Exception) -> bool:
        """Hand over the answer or the error; False if nobody wants it any more. For the engine."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:  # cancelled in the meantime
            return False
        return True
