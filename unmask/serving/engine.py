"""The engine: requests join and leave between steps, and those of like length share one forward.

It has a thread of its own. Requests are admitted in the order of their arrival, as far as the limits allow; a
row that is done leaves at once. What a request gets does not depend on its neighbours, but for rounding: the
logits of a batch differ in their last bits from those of a row alone. `exact` runs the model on rows alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from types import TracebackType

from torch import Tensor

from unmask.errors import whole
from unmask.serving.batch import Group, by_length, read_rulings, run_model
from unmask.serving.errors import Closing, DeadlineExceeded, QueueFull, RequestFailed
from unmask.serving.job import Job
from unmask.serving.limits import Limits
from unmask.serving.monitor import Monitor, NoMonitor, Tick
from unmask.serving.row import Key, Row
from unmask.serving.work import Work, continue_text, fill_gaps
from unmask.text.config import GenerationConfig
from unmask.text.generate import DEFAULT_CONFIG, DEFAULT_SAMPLER
from unmask.text.prompts import Prompt, TextModel, device_of
from unmask.types import Sampler, Step

log = logging.getLogger(__name__)
DEFAULT_LIMITS = Limits()
SMOOTHING = 0.1  # weight of the newest request in the mean time that a request takes
LONGEST_RETRY = 60  # seconds


class Engine:
    """Decodes many requests at a time. Use it in a `with` block, which waits for what was submitted."""

    def __init__(
        self,
        model: TextModel,
        limits: Limits = DEFAULT_LIMITS,
        monitor: Monitor | None = None,
        *,
        exact: bool = False,
    ) -> None:
        self.model = model
        self.limits = limits
        self.exact = exact
        self.monitor: Monitor = NoMonitor() if monitor is None else monitor
        self._device = device_of(model)
        self._waiting: deque[Job] = deque()
        self._rows: list[Row] = []
        self._lock = threading.Condition()  # of _waiting and of the two flags
        self._draining = False
        self._stopped = False
        self._mean_seconds = 1.0
        self._thread = threading.Thread(target=self._run, name="unmask-engine", daemon=True)

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=error is not None)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def drain(self, *, now: bool = False) -> None:
        """Take no new requests; what was taken goes on or, with `now`, ends after this step."""
        with self._lock:
            self._draining = True
            self._stopped = self._stopped or now
            self._lock.notify_all()

    def close(self, *, now: bool = False) -> None:
        """Drain, and wait for the engine's thread to end."""
        self.drain(now=now)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive() and not self._draining

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._rows)

    def submit(
        self,
        prompt: Prompt,
        sampler: Sampler = DEFAULT_SAMPLER,
        config: GenerationConfig = DEFAULT_CONFIG,
        *,
        deadline: float | None = None,
        candidates: int = 0,
    ) -> Job:
        """Have a prompt answered as `unmask.generate` would; `deadline` in seconds from now.

        With `candidates`, the job keeps what every step saw, and so many candidates per position.
        """
        self._check_open()
        work = continue_text(self.model, prompt, sampler, config, self.limits)
        return self._enqueue(work, deadline, candidates)

    def submit_infill(
        self,
        text: str,
        sampler: Sampler = DEFAULT_SAMPLER,
        config: GenerationConfig = DEFAULT_CONFIG,
        *,
        deadline: float | None = None,
        candidates: int = 0,
    ) -> Job:
        """Have the gaps of a text filled as `unmask.infill` would."""
        self._check_open()
        work = fill_gaps(self.model, text, sampler, config, self.limits)
        return self._enqueue(work, deadline, candidates)

    def _enqueue(self, work: Work, deadline: float | None, candidates: int) -> Job:
        whole("candidates", candidates, 0)
        job = Job(work, self.limits.time_left(deadline), candidates)
        with self._lock:
            self._check_open()
            self._waiting.append(job)
            self.monitor.arrived(job)
            self._lock.notify_all()
        return job

    def _check_open(self) -> None:
        """Refuse before any work is done on a request."""
        if self._draining:
            raise Closing
        free = max(0, self.limits.max_rows - len(self._rows))
        if len(self._waiting) >= self.limits.max_queue + free:
            raise QueueFull(len(self._waiting), self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until a place in the queue should be free."""
        turns = (len(self._waiting) + 1) / self.limits.max_rows
        return min(max(1, round(turns * self._mean_seconds)), LONGEST_RETRY)

    # from here on: the engine's thread

    def _run(self) -> None:
        while self._admit():
            if not self._rows:
                continue
            try:
                self._step()
            except Exception as error:
                log.exception("a step failed")
                self._fail([row.job for row in self._rows], error)
            self._rows = [row for row in self._rows if not self._settle(row)]
        for job in (*(row.job for row in self._rows), *self._waiting):
            job.finish(Closing())
        self._rows, self._waiting = [], deque()

    def _admit(self) -> bool:
        """Let requests in as far as they fit; wait for one if there is nothing to do. False: all is over."""
        with self._lock:
            while not (self._waiting or self._rows or self._draining):
                self._lock.wait()
            if self._stopped or not (self._waiting or self._rows):
                return False
            self._waiting = deque(job for job in self._waiting if not self._gone(job))
            while self._waiting and self._has_room(self._waiting[0].work):
                self._start(self._waiting.popleft())
            return True

    def _has_room(self, work: Work) -> bool:
        lanes = sum(row.work.lanes for row in self._rows) + work.lanes
        longest = max([work.length, *(row.work.length for row in self._rows)])
        return self.limits.fits(lanes, longest)

    def _start(self, job: Job) -> None:
        job.admitted = perf_counter()
        try:
            self._rows.append(Row(job, self.model.info))
        except Exception as error:
            log.exception("a request could not be started", extra={"job": job.id})
            self._fail([job], error)

    def _settle(self, row: Row) -> bool:
        """Hand over what is done; True: the row leaves."""
        if self._gone(row.job):
            return True
        if row.turn is not None:
            return False
        try:
            answered = row.job.finish(row.answer())
        except Exception as error:
            log.exception("an answer could not be read", extra={"job": row.job.id})
            self._fail([row.job], error)
            return True
        self._mean_seconds += SMOOTHING * (perf_counter() - row.since - self._mean_seconds)
        self.monitor.left(row.job, "answered" if answered else "cancelled")
        return True

    def _gone(self, job: Job) -> bool:
        """Whether it failed, nobody waits for it any more, or its time is over."""
        if job.future.cancelled():
            self.monitor.left(job, "cancelled")
            return True
        if job.future.done():
            return True
        if job.seconds is not None and job.expired(perf_counter()):
            job.finish(DeadlineExceeded(job.seconds))
            self.monitor.left(job, "expired")
            return True
        return False

    def _fail(self, jobs: Iterable[Job], error: Exception) -> None:
        """End requests with an error; only sentences that were written for users go out to them."""
        for job in jobs:
            failure = RequestFailed(str(error) if isinstance(error, ValueError) else "an internal error")
            failure.__cause__ = error.with_traceback(None)  # its frames hold logits
            if job.finish(failure):
                self.monitor.left(job, "failed")

    def _step(self) -> None:
        """One reverse step of every row."""
        began = perf_counter()
        asking = [row for row in self._rows if row.next.view.forward]
        evaluations = self._forward(asking)
        live = [row for row in self._rows if not row.job.future.done()]
        groups = [group for rows in by_key(live) for group in self._gather(rows)]
        steps = self._take(groups)
        self.monitor.stepped(
            Tick(
                rows=len(live),
                waiting=len(self._waiting),
                seconds=perf_counter() - began,
                evaluations=evaluations,
                forwards=len(asking),
                **committed(steps),
            )
        )

    def _forward(self, rows: Sequence[Row]) -> int:
        """Run the model on rows of like length together, or on each alone; how often it ran."""
        groups = [[row] for row in rows] if self.exact else by_length(rows)
        return sum(self._run_model(group) for group in groups)

    def _run_model(self, rows: Sequence[Row]) -> int:
        """Run the model on all rows at once; if that fails, on each alone. How often it ran."""
        try:
            run_model(self.model, rows, self._device)
        except Exception as error:
            log.exception("a forward failed", extra={"jobs": [row.job.id for row in rows]})
            if len(rows) == 1:
                self._fail([rows[0].job], error)
                return 1
        else:
            return 1
        return 1 + sum(self._run_model([row]) for row in rows)

    def _gather(self, rows: list[Row]) -> list[Group]:
        """A group of these rows; if that fails, each row is its own."""
        try:
            return [Group(rows, self.model.info, self._device)]
        except Exception as error:
            log.exception("logits could not be read", extra={"jobs": [row.job.id for row in rows]})
            if len(rows) == 1:
                self._fail([rows[0].job], error)
                return []
        return [group for row in rows for group in self._gather([row])]

    def _take(self, groups: Sequence[Group]) -> list[Step]:
        """Decide for every group and let its rows move on."""
        decided = [part for group in groups for part in self._decide(group)]
        if not decided:
            return []
        steps = []
        read = read_rulings([packed for *_, packed in decided])
        for (group, rows, _), rulings in zip(decided, read, strict=True):
            for row, ruling in zip(rows, rulings, strict=True):
                try:
                    steps.append(row.take(ruling))
                except Exception as error:
                    log.exception("a step could not be taken", extra={"job": row.job.id})
                    self._fail([row.job], error)
                else:
                    group.keep(row)
        return steps

    def _decide(self, group: Group) -> list[tuple[Group, list[Row], Tensor]]:
        """The packed decision on a group; if the sampler fails, on each row alone."""
        try:
            return [(group, group.rows, group.decide())]
        except Exception as error:
            jobs = [row.job.id for row in group.rows]
            log.exception("a sampler failed", extra={"jobs": jobs})
            if len(group.rows) == 1:
                self._fail([group.rows[0].job], error)
                return []
        decided = []
        for row in group.rows:
            try:
                decided.append((group, [row], group.decide_alone(row)))
            except Exception as error:
                log.exception("a sampler failed", extra={"job": row.job.id})
                self._fail([row.job], error)
        return decided


def exact_costs_little(model: TextModel) -> bool:
    """Whether rows are nearly as fast alone as together: on a CPU, where time goes with the tokens."""
    return device_of(model).type == "cpu"


def by_key(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that can be decided together."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    return list(groups.values())


def committed(steps: Iterable[Step]) -> dict[str, int]:
    """How many tokens some single-row steps committed, by what committed them."""
    count = {"accepted": 0, "forced": 0, "leftovers": 0}
    for step in steps:
        by = "leftovers" if step.leftover else "forced" if step.decision.forced[0] else "accepted"
        count[by] += int(step.decision.commit.sum())
    return count
