"""The engine: requests join and leave between steps, and those of similar length share a forward.

The engine runs in its own thread. It admits requests in the order of their arrival, as far as the limits
allow. A finished request leaves at once. Answers do not depend on other requests, except for rounding: the
logits of a batch differ in their last bits from those of a single row. `exact` runs each row alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from time import perf_counter
from types import TracebackType

from unmask.errors import FieldError, whole
from unmask.fast.graphs import GraphRunner, runner_of
from unmask.serving.device_memory import DeviceMemory
from unmask.serving.errors import Closing, DeadlineExceeded, QueueFull, RequestFailed
from unmask.serving.job import Job
from unmask.serving.limits import MIB, Limits
from unmask.serving.monitor import Monitor, NoMonitor, Tick
from unmask.serving.request import Request, RunningRequest, infill_request, text_request
from unmask.serving.stepper import Stepper, raise_if_lost
from unmask.text.config import GenerationConfig
from unmask.text.generate import DEFAULT_CONFIG, DEFAULT_SAMPLER
from unmask.text.prompts import Prompt, TextModel, device_of
from unmask.types import Sampler

log = logging.getLogger(__name__)
DEFAULT_LIMITS = Limits()
SMOOTHING = 0.1  # weight of the newest request in the mean duration of requests
LONGEST_RETRY = 60  # seconds


class Engine:
    """Decodes many requests at a time. Use it in a `with` block, which waits for all submitted requests."""

    def __init__(
        self,
        model: TextModel,
        limits: Limits = DEFAULT_LIMITS,
        monitor: Monitor | None = None,
        *,
        exact: bool = False,
        overlap: bool | None = None,
    ) -> None:
        """Make an engine. `overlap` runs large batches as two halves; None means on a GPU only."""
        self.model = model
        self.limits = limits
        self.exact = exact
        self.monitor: Monitor = NoMonitor() if monitor is None else monitor
        device, limit = device_of(model), limits.max_memory_mb
        self._memory = DeviceMemory(model, device, None if limit is None else limit * MIB)
        self._stepper = Stepper(
            model,
            device,
            exact=exact,
            overlap=device.type == "cuda" if overlap is None else overlap,
            reclaim=self._memory.reclaim,
            fail=self._fail,
        )
        self._waiting: deque[Job] = deque()
        self._running: list[RunningRequest] = []
        self._lock = threading.Condition()  # guards _waiting, _draining and _stopped
        self._draining = False
        self._stopped = False
        self._mean_seconds = 1.0
        self._runner: GraphRunner | None = None  # of a compiled model, while reserved by this engine
        self._thread = threading.Thread(target=self._run, name="unmask-engine", daemon=True)

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(now=error is not None)

    def start(self) -> None:
        """Start the engine's thread. Raise if a compiled model runs in another engine."""
        runner = runner_of(self.model)
        if runner is not None and not runner.reserve():
            problem, remedy = "is compiled and runs in another engine", "close that engine, or load it anew"
            raise FieldError("model", type(self.model).__name__, problem, remedy)
        self._runner = runner
        try:
            self._thread.start()
        except RuntimeError:  # a thread starts only once
            self._release_model()
            raise

    def drain(self, *, now: bool = False) -> None:
        """Refuse new requests. Accepted ones finish or, with `now`, end after the current step."""
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
        """Whether the engine accepts requests."""
        return self._thread.is_alive() and not self._draining

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(
        self,
        prompt: Prompt,
        sampler: Sampler = DEFAULT_SAMPLER,
        config: GenerationConfig = DEFAULT_CONFIG,
        *,
        deadline: float | None = None,
        candidates: int = 0,
        special_tokens: bool = True,
    ) -> Job:
        """Submit a prompt, to be answered as `unmask.generate` would; `deadline` is in seconds from now.

        With `candidates`, the job's snapshots have the signals of the step and this many candidates per
        position. Without `special_tokens`, text that spells a special token is encoded as plain characters.
        """
        self._check_open()
        request = text_request(
            self.model, prompt, sampler, config, self.limits, special_tokens=special_tokens
        )
        return self._enqueue(request, deadline, candidates)

    def submit_infill(
        self,
        text: str,
        sampler: Sampler = DEFAULT_SAMPLER,
        config: GenerationConfig = DEFAULT_CONFIG,
        *,
        deadline: float | None = None,
        candidates: int = 0,
        special_tokens: bool = True,
    ) -> Job:
        """Submit a text with gaps, to be filled as `unmask.infill` would."""
        self._check_open()
        request = infill_request(
            self.model, text, sampler, config, self.limits, special_tokens=special_tokens
        )
        return self._enqueue(request, deadline, candidates)

    def _enqueue(self, request: Request, deadline: float | None, candidates: int) -> Job:
        whole("candidates", candidates, 0)
        job = Job(request, self.limits.time_left(deadline), candidates)
        self._memory.check(job)
        with self._lock:
            self._check_open()
            self._waiting.append(job)
            self.monitor.arrived(job)
            self._lock.notify_all()
        return job

    def _check_open(self) -> None:
        """Raise if the engine is closing or its queue is full."""
        if self._draining:
            raise Closing
        free = max(0, self.limits.max_rows - len(self._running))
        if len(self._waiting) >= self.limits.max_queue + free:
            raise QueueFull(len(self._waiting), self._retry_after())

    def _retry_after(self) -> int:
        """Return the seconds until a place in the queue should be free."""
        turns = (len(self._waiting) + 1) / self.limits.max_rows
        return min(max(1, round(turns * self._mean_seconds)), LONGEST_RETRY)

    # from here on, everything runs in the engine's thread

    def _run(self) -> None:
        try:
            while self._admit():
                if self._running:
                    self._step()
        except Exception as error:
            log.critical("the engine has ended; restart the server", exc_info=True)
            self._fail(self._take_jobs(), error)
        finally:
            for job in self._take_jobs():
                job.finish(Closing())
            self._stepper.forget()
            self._release_model()

    def _take_jobs(self) -> list[Job]:
        """Refuse new requests; remove all others and return their jobs."""
        with self._lock:
            self._draining = True
            jobs = [*(request.job for request in self._running), *self._waiting]
            self._running, self._waiting = [], deque()
        return jobs

    def _release_model(self) -> None:
        """Let another engine run a compiled model."""
        if self._runner is not None:
            self._runner.release()
            self._runner = None

    def _step(self) -> None:
        try:
            self._stepper.step(self._running, self._committed)
        except Exception as error:
            raise_if_lost(error, self._stepper.device)
            log.exception("a step failed")
            self._stepper.forget()
            self._fail([request.job for request in self._running if not request.is_done], error)
        self._settle_all()

    def _admit(self) -> bool:
        """Admit the requests that fit; wait if there are none. Return False when the engine must end."""
        with self._lock:
            while not (self._waiting or self._running or self._draining):
                self._lock.wait()
            if self._stopped or not (self._waiting or self._running):
                return False
            self._waiting = deque(job for job in self._waiting if not self._is_finished(job))
            if self._waiting and not self._running:
                self._prepare_memory(self._waiting[0])
            while self._waiting and self._has_room(self._waiting[0]):
                self._start(self._waiting.popleft())
            return True

    def _prepare_memory(self, job: Job) -> None:
        try:
            self._memory.prepare(self.limits, job)
        except Exception as error:  # the requests themselves may still fit
            raise_if_lost(error, self._stepper.device)
            log.exception("memory could not be prepared")

    def _has_room(self, job: Job) -> bool:
        jobs = [job, *(each.job for each in self._running)]
        requests = [each.request for each in jobs]
        rows = sum(each.num_rows for each in requests)
        tokens = sum(each.num_rows * each.length for each in requests)
        state = sum(each.state_bytes for each in requests)
        if not self.limits.fits(rows, tokens, state):
            return False
        return not self._running or self._memory.fits(jobs)  # `_enqueue` checked that it fits alone

    def _start(self, job: Job) -> None:
        job.admitted = perf_counter()
        try:
            request = RunningRequest(job, self.model.info)
            if not self._stepper.exact:
                request.share_prefix(self.model)
            self._running.append(request)
        except Exception as error:
            log.exception("a request could not be started", extra={"job": job.id})
            self._fail([job], error)
            raise_if_lost(error, self._stepper.device)

    def _committed(self, tick: Tick) -> None:
        """Report a step and settle the requests that it finished, before more work is queued."""
        self.monitor.stepped(tick._replace(waiting=len(self._waiting)))
        self._settle_all()

    def _settle_all(self) -> None:
        """Remove the requests that are done or have ended."""
        self._running = [request for request in self._running if not self._settle(request)]
        if not self._running:
            self._stepper.forget()

    def _settle(self, request: RunningRequest) -> bool:
        """Finish the job of a request that is done; return whether the request leaves."""
        job = request.job
        if self._is_finished(job):
            return True
        if not request.is_done:
            return False
        try:
            answered = job.finish(request.answer())
        except Exception as error:
            log.exception("an answer could not be read", extra={"job": job.id})
            self._fail([job], error)
            return True
        self._mean_seconds += SMOOTHING * (perf_counter() - request.since - self._mean_seconds)
        self.monitor.left(job, "answered" if answered else "cancelled")
        return True

    def _is_finished(self, job: Job) -> bool:
        """Return whether a job has ended; end it if it is past its deadline."""
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
        """End jobs with an error. Only the message of a ValueError is written for users and sent to them."""
        for job in jobs:
            failure = RequestFailed(str(error) if isinstance(error, ValueError) else "an internal error")
            failure.__cause__ = error.with_traceback(None)  # the frames hold logits
            if job.finish(failure):
                self.monitor.left(job, "failed")


def exact_costs_little(model: TextModel) -> bool:
    """Return whether rows are nearly as fast alone as together: on a CPU, time grows with the tokens."""
    return device_of(model).type == "cpu"
