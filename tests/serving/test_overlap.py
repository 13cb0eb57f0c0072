"""Two halves of a batch take turns, and every request gets what it gets alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.serving.conftest import Gated, Slow, wait_until
from tests.serving.test_engine import ONE_BY_ONE, TextToy
from tests.toy import Toy
from unmask import SAMPLERS, GenerationConfig, generate
from unmask.serving import Engine, Limits, RequestFailed, batch, stepper
from unmask.serving.monitor import NoMonitor, Tick
from unmask.types import Decision, Observation


@pytest.fixture(autouse=True)
def small_batches_overlap(monkeypatch: Any) -> None:
    monkeypatch.setattr(stepper, "OVERLAP_COLUMNS", 8)


@pytest.mark.parametrize("name", ["less", "klass"])
def test_halves_of_a_batch_give_the_texts_of_runs_alone(name: str) -> None:
    toy = Toy(eos_ids=())
    model, rows = TextToy(toy), 6
    configs = [GenerationConfig(max_new_tokens=4 + 3 * (n % 4), temperature=0.5, seed=n) for n in range(11)]
    prompts = [[2 + n % 5] * (1 + n % 3) for n in range(11)]
    server = Engine(model, Limits(max_rows=rows), overlap=True)
    jobs = [server.submit(*ask) for ask in zip(prompts, [SAMPLERS[name]] * 11, configs, strict=True)]
    with server:
        together = [job.result(20) for job in jobs]
    assert max(toy.calls) <= rows // 2 + 2  # those that join go with the half that starts next
    asks = zip(prompts, configs, strict=True)
    assert together == [generate(model, [prompt], SAMPLERS[name], config)[0] for prompt, config in asks]


class Fails(type(ONE_BY_ONE)):  # type: ignore[misc]
    """Raises in its third step."""

    def decide(self, obs: Observation) -> Decision:
        if int(obs.step.max()) >= 3:
            raise ValueError("no more")
        return super().decide(obs)


def test_a_failure_and_a_cancellation_in_one_half_leave_the_others_alone() -> None:
    model, config = TextToy(Toy(eos_ids=())), GenerationConfig(max_new_tokens=12)
    server = Engine(model, overlap=True)
    jobs = [
        server.submit([2 + n], Fails(min_confidence=1) if n == 3 else ONE_BY_ONE, config) for n in range(7)
    ]
    jobs[1].listen(jobs[1].cancel)
    with server:
        with pytest.raises(RequestFailed):
            jobs[3].result(20)
        for n in (0, 2, 4, 5, 6):
            assert jobs[n].result(20) == generate(model, [[2 + n]], ONE_BY_ONE, config)[0]
    assert jobs[1].future.cancelled()
    assert server.running == 0


def test_at_most_one_forward_of_a_half_is_queued_before_the_other_is_committed(monkeypatch: Any) -> None:
    seen: list[str] = []

    def groups(model: Any, requests: Any, *, alone: bool) -> list[list[Any]]:
        return [[request] for request in requests]  # a forward each

    def start_reading(decided: Any) -> Any:
        read = batch.start_reading(decided)
        return lambda: (seen.append("read"), read())[1]

    def run_forward(*given: Any, **how: Any) -> None:
        seen.append("forward")
        batch.run_forward(*given, **how)

    for own in (groups, start_reading, run_forward):
        name = "forward_groups" if own is groups else own.__name__
        monkeypatch.setattr(stepper, name, own)
    model, config = TextToy(Toy(eos_ids=())), GenerationConfig(max_new_tokens=12)
    server = Engine(model, overlap=True)
    jobs = [server.submit([2 + n], ONE_BY_ONE, config) for n in range(6)]
    with server:
        for job in jobs:
            job.result(20)
    steps = "".join("r" if each == "read" else "f" for each in seen)
    assert steps.startswith("ffff" + "rff" + "frff" * 3)  # both halves have three rows


class Recorder(NoMonitor):
    """Keeps the steps of an engine."""

    def __init__(self) -> None:
        self.ticks: list[Tick] = []

    def stepped(self, tick: Tick) -> None:
        self.ticks.append(tick)


def test_a_finished_answer_does_not_wait_for_the_other_half(monkeypatch: Any) -> None:
    model, config = TextToy(Toy(eos_ids=())), GenerationConfig(max_new_tokens=2)
    longer = GenerationConfig(max_new_tokens=8)
    server = Engine(model, overlap=True)
    jobs = [server.submit([2 + n], ONE_BY_ONE, config if n % 2 == 0 else longer) for n in range(6)]
    decide = stepper.decide

    def broken_later(*given: Any, **how: Any) -> Any:
        if all(job.future.done() for job in jobs[::2]):
            raise RuntimeError("the first half is done, the second cannot go on")
        return decide(*given, **how)

    monkeypatch.setattr(stepper, "decide", broken_later)
    with server:
        for n in (0, 2, 4):
            assert jobs[n].result(20) == generate(model, [[2 + n]], ONE_BY_ONE, config)[0]
        for n in (1, 3, 5):
            with pytest.raises(RequestFailed):
                jobs[n].result(20)


def test_a_half_whose_requests_were_cancelled_leaves_nothing_behind() -> None:
    model, config = TextToy(Toy(eos_ids=())), GenerationConfig(max_new_tokens=12)
    monitor = Recorder()
    server = Engine(model, monitor=monitor, overlap=True)
    jobs = [server.submit([2 + n], ONE_BY_ONE, config) for n in range(6)]

    def cancel_all() -> None:
        for job in jobs:
            job.cancel()

    jobs[0].listen(cancel_all)
    with server:
        wait_until(lambda: server.running == 0 and all(job.future.cancelled() for job in jobs))
        cancelled = len(monitor.ticks)
        assert server.submit([2], ONE_BY_ONE, config).result(20).token_ids
    later = monitor.ticks[cancelled:]
    assert all(tick.rows == tick.evaluations == tick.forwards == 1 for tick in later)


def test_halves_that_grew_apart_are_split_anew() -> None:
    toy = Toy(eos_ids=())
    gated = Gated(TextToy(toy))
    server = Engine(gated, overlap=True)
    config = GenerationConfig(max_new_tokens=16)
    first = [server.submit([2 + n], ONE_BY_ONE, config) for n in range(2)]
    with server:
        wait_until(lambda: server.running == 2)
        others = [server.submit([2 + n], ONE_BY_ONE, config) for n in range(10)]
        gated.open()
        for job in (*first, *others):
            job.result(20)
    assert toy.calls.count(6) > 8  # two halves of six rows


def test_the_seconds_of_all_steps_are_those_of_the_run() -> None:
    monitor = Recorder()
    server = Engine(Slow(TextToy(Toy(eos_ids=())), 0.04), monitor=monitor, overlap=True)
    jobs = [server.submit([2 + n], ONE_BY_ONE, GenerationConfig(max_new_tokens=12)) for n in range(6)]
    began = time.perf_counter()
    with server:
        for job in jobs:
            job.result(20)
    assert sum(tick.seconds for tick in monitor.ticks) > 0.6 * (time.perf_counter() - began)
