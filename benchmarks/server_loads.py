"""Loads on the serving engine (a closed loop, Poisson arrivals, a burst), and the gaps in its forwards."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, Protocol
from unittest.mock import patch

import torch

import unmask
from benchmarks.server import TickLog
from unmask.bench.internals import mark_forwards
from unmask.bench.timing import Spans
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Job, Limits, stepper
from unmask.serving.batch import decide
from unmask.serving.monitor import Tick

Prompt = list[int]
BASE = unmask.make_sampler("base")


class Timed(Protocol):
    """The times at which a request was sent, showed its first final text and was answered."""

    @property
    def sent(self) -> float: ...

    @property
    def first(self) -> float: ...

    @property
    def answered(self) -> float: ...

    @property
    def steps(self) -> Sequence[float]:
        """The times at which its steps ended, or nothing if they are unknown."""
        ...


class Crowd(Protocol):
    """Clients that keep one request each in flight."""

    @property
    def answers(self) -> Sequence[Timed]: ...

    def start(self) -> None: ...

    def wait(self, answers: int) -> None: ...

    def stop(self) -> None: ...


MakeCrowd = Callable[[Engine, Iterator[Prompt], unmask.GenerationConfig, int], Crowd]


class Clock(TickLog):
    """Records every step of an engine, and when it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def stepped(self, tick: Tick) -> None:
        super().stepped(tick)
        self.ends.append(time.perf_counter())


@dataclass
class Asked:
    """A request, and the times at which it was sent, showed its first final text and was answered."""

    job: Job
    sent: float
    first: float = 0.0
    answered: float = 0.0
    steps: list[float] = field(default_factory=list)  # when each step ended

    @classmethod
    def submit(cls, to: Engine, prompt: Prompt, config: unmask.GenerationConfig) -> Asked:
        """Submit a prompt and watch its canvas, as a stream does."""
        sent = time.perf_counter()
        asked = cls(to.submit(prompt, BASE, config), sent)
        column, mask = asked.job.request.run.canvas.start, to.model.info.mask_id

        def look() -> None:
            now = time.perf_counter()
            for snapshot in asked.job.drain_snapshots():
                asked.steps.append(now)
                if not asked.first and int(snapshot.tokens[column]) != mask:
                    asked.first = now
            if asked.job.future.done():
                asked.answered = now

        asked.job.listen(look)
        return asked


def latencies(asked: Sequence[Timed]) -> dict[str, float]:
    """Return percentiles of the time to the first final text and to the answer."""
    total = [one.answered - one.sent for one in asked]
    first = [(one.first or one.answered) - one.sent for one in asked]
    return {
        "requests": len(asked),
        "first_text_p50_s": percentile(first, 50),
        "first_text_p95_s": percentile(first, 95),
        "answer_p50_s": percentile(total, 50),
        "answer_p95_s": percentile(total, 95),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile. With one value, return this value."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


@contextmanager
def running(model: Trunk, limits: Limits, *, overlap: bool | None = None) -> Iterator[tuple[Engine, Clock]]:
    """Run an engine as `unmask serve --batched` does. At the end, close it without waiting for answers."""
    clock = Clock()
    server = Engine(model, limits, clock, overlap=overlap)
    server.start()
    try:
        yield server, clock
    finally:
        server.close(now=True)


@dataclass
class Clients:
    """Clients that send one request after another until they are told to stop."""

    server: Engine
    prompts: Iterator[Prompt]
    config: unmask.GenerationConfig
    count: int
    answers: list[Asked] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Let every client send a first request, with a random number of steps to spread the clients out."""
        dice, steps = random.Random(0), self.config.steps or 1
        self._threads = [
            threading.Thread(target=self._ask, args=(dice.randint(1, steps),), daemon=True)
            for _ in range(self.count)
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, first_steps: int) -> None:
        first = unmask.GenerationConfig(
            max_new_tokens=self.config.max_new_tokens,
            steps=first_steps,
            block_length=None,
            stop_at_eos=False,
        )
        try:
            self._send(first)
            while not self._stop.is_set():
                asked = self._send(self.config)
                self.answers.append(asked)
        except Exception as error:
            if not self._stop.is_set():
                self.errors.append(error)

    def _send(self, config: unmask.GenerationConfig) -> Asked:
        with self._lock:
            prompt = next(self.prompts)
        asked = Asked.submit(self.server, prompt, config)
        asked.job.result()
        return asked

    def wait(self, answers: int) -> None:
        """Wait until the clients have this many answers in total. Raise if one failed."""
        while len(self.answers) < answers:
            if self.errors:
                raise self.errors[0]
            time.sleep(0.002)

    def stop(self) -> None:
        """Send no more requests. Those that are waiting end with the engine."""
        self._stop.set()


def closed_loop(
    model: Trunk,
    limits: Limits,
    prompts: Iterator[Prompt],
    config: unmask.GenerationConfig,
    *,
    clients: int,
    rounds: int,
    make_crowd: MakeCrowd = Clients,
) -> dict[str, Any]:
    """Keep the clients busy. Time `rounds` requests per client, after one answer per client."""
    steps = config.steps or 1
    with running(model, limits) as (server, clock):
        crowd = make_crowd(server, prompts, config, clients)
        try:
            crowd.start()
            crowd.wait(clients)
            begin = len(clock.ends)
            crowd.wait(clients * (1 + rounds))
            end = len(clock.ends)
        finally:
            crowd.stop()
    ends, ticks = clock.ends[begin:end], clock.ticks[begin + 1 : end]
    per_second = sum(tick.rows for tick in ticks) / steps / (ends[-1] - ends[0])
    return {
        "clients": clients,
        "requests_per_second": per_second,
        "tokens_per_second": per_second * (config.max_new_tokens or 0),
        "rows_per_tick": sum(tick.rows for tick in ticks) / len(ticks),
        "forwards_per_tick": sum(tick.evaluations for tick in ticks) / len(ticks),
        "slowest_ticks": slowest(clock, begin, end),
        **step_times(crowd.answers),
        **latencies(crowd.answers),
    }


def step_times(asked: Sequence[Timed]) -> dict[str, float]:
    """Return the time from one step of a request to the next, or nothing if the steps are unknown."""
    took = [(right - left) * 1e3 for one in asked for left, right in pairwise(one.steps)]
    if not took:
        return {}
    middle, high = median(took), percentile(took, 95)
    return {"step_p50_ms": middle, "step_p95_ms": high, "step_p95_over_p50": high / middle}


def slowest(clock: Clock, begin: int, end: int, count: int = 8) -> list[dict[str, float]]:
    """Return the ticks that took longest, with their rows and forwards."""
    took = [(clock.ends[i] - clock.ends[i - 1], i) for i in range(begin + 1, end)]
    return [
        {
            "ms": ms * 1e3,
            "tick": i - begin,
            "rows": clock.ticks[i].rows,
            "forwards": clock.ticks[i].evaluations,
        }
        for ms, i in sorted(took, reverse=True)[:count]
    ]


def open_loop(
    model: Trunk,
    limits: Limits,
    prompts: Iterator[Prompt],
    config: unmask.GenerationConfig,
    waits: Sequence[float],
) -> dict[str, Any]:
    """Send a request after each wait, whether or not earlier ones are answered."""
    with running(model, limits) as (server, clock):
        began = at = time.perf_counter()
        asked = []
        for wait in waits:
            at += wait
            time.sleep(max(0.0, at - time.perf_counter()))
            asked.append(Asked.submit(server, next(prompts), config))
        for one in asked:
            one.job.result()
        took = time.perf_counter() - began
    rows = [tick.rows for tick in clock.ticks]
    return {
        "requests_per_second": len(asked) / took,
        "mean_rows": sum(rows) / len(rows),
        **latencies(asked),
    }


def poisson(rate: float, count: int) -> list[float]:
    """Draw the waits between the arrivals of a Poisson process."""
    dice = random.Random(0)
    return [dice.expovariate(rate) for _ in range(count)]


def pauses(busy: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield when a device became idle and for how long. `busy` has the begin and end of its work, sorted."""
    free = busy[0][1]
    for begin, end in busy[1:]:
        if begin >= free:
            yield free, begin - free
        free = max(free, end)


def gaps(model: Trunk, wave: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Return the lengths of gaps without a forward or a decision on the device, while `wave` runs.

    On a GPU the marks are CUDA events, so a gap is the time from the end of all queued work to the start of
    the next forward or decision. The first and the last steps, in which rows join and leave, do not count.
    """
    decisions = Spans(device)
    with patch.object(stepper, "decide", decisions.around(decide)):
        marks = mark_forwards(model, wave, device)
    work = [*(pair for spans in marks for pair in spans.marks), *decisions.marks]
    at = partial(decisions.between, marks.opening.marks[0][0])
    busy = sorted((at(begin), at(end)) for begin, end in work)
    ends = sorted(at(end) for _, end in decisions.marks)
    inner = [wait for moment, wait in pauses(busy) if ends[0] <= moment < ends[-3]] if len(ends) > 3 else []
    if not inner:
        raise RuntimeError("too few steps to see a gap; use at least 5")
    return {
        "gap_p50_ms": median(inner),
        "gap_p95_ms": percentile(inner, 95),
        "gap_max_ms": max(inner),
        "gaps_over_0.3_ms": sum(wait > 0.3 for wait in inner) / len(inner),
    }
