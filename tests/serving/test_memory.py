"""Requests wait for memory of the device, and one that can never fit is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import GOLDENS
from tests.raises import raises_field
from tests.text.conftest import tiny
from unmask import Base, GenerationConfig, Threshold, compile, generate, load, make_sampler
from unmask.bench.step import SHAPES
from unmask.decoding.bans import Bans
from unmask.decoding.draw import Selection
from unmask.decoding.options import Options
from unmask.fast.graphs import GraphRunner
from unmask.models.checkpoint.load import build
from unmask.serving import Engine, Limits
from unmask.serving.device_memory import DeviceMemory
from unmask.serving.limits import MIB
from unmask.types import Decision, Observation, Sampler

CONFIG = GenerationConfig(max_new_tokens=256, steps=4, block_length=None)
LESS = make_sampler("less")
CPU = torch.device("cpu")


def estimate(model: Any, count: int, config: GenerationConfig = CONFIG) -> int:
    """The estimate for some requests, in MiB, rounded up."""
    engine = Engine(model)
    submitted = [engine.submit([5], Base(), config) for _ in range(count)]
    return -(-DeviceMemory(model, CPU, None).needed(submitted) // MIB)


@pytest.fixture
def model() -> Any:
    return tiny("llada_tiny")


def test_requests_wait_until_there_is_memory_and_all_are_answered(model: Any) -> None:
    config = GenerationConfig(max_new_tokens=256, steps=4, block_length=None)
    limits = Limits(max_memory_mb=estimate(model, 2, config))
    assert estimate(model, 4, config) > estimate(model, 2, config)
    together = []
    engine = Engine(model, limits)
    submitted = [engine.submit([5 + n], Base(), config) for n in range(4)]
    submitted[0].listen(lambda: together.append(engine.running))
    with engine:
        found = [job.result(20) for job in submitted]
    assert max(together) < 4
    assert found == [generate(model, [[5 + n]], Base(), config)[0] for n in range(4)]


def test_a_request_that_never_fits_is_refused_and_smaller_ones_are_answered(model: Any) -> None:
    small = GenerationConfig(max_new_tokens=8, steps=4)
    with Engine(model, Limits(max_memory_mb=1)) as engine:
        with raises_field("prompts", "513 tokens"):
            engine.submit([5], Base(), GenerationConfig(max_new_tokens=512, steps=4, block_length=None))
        assert engine.submit([5], Base(), small).result(20).steps == 4


def test_a_request_waits_for_its_turn_even_if_others_filled_the_memory_first(model: Any) -> None:
    with Engine(model, Limits(max_memory_mb=estimate(model, 1))) as engine:
        submitted = [engine.submit([5 + n], Base(), CONFIG) for n in range(3)]
        ends = [job.result(20) and job.admitted for job in submitted]
    assert ends == sorted(ends)


def test_a_request_that_never_fits_is_refused_while_the_memory_is_measured_anew(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def measure(device: torch.device) -> tuple[int, int]:
        if memory.total is not None or refused:  # a request arrives in another thread
            with raises_field("prompts", "257 tokens"):
                memory.check(job)
            refused.append(job)
        return MIB, MIB

    job = Engine(model).submit([5], Base(), CONFIG)
    memory = DeviceMemory(model, CPU, 0)
    memory.device, memory.limit = torch.device("cuda"), None
    monkeypatch.setattr(torch.cuda, "mem_get_info", measure)
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    memory.measure()
    assert refused


def test_without_a_gpu_or_a_limit_all_requests_fit(model: Any) -> None:
    engine = Engine(model)
    job = engine.submit([5], Base(), CONFIG)
    assert DeviceMemory(model, CPU, None).fits([job] * 1000)
    assert not DeviceMemory(model, CPU, 1000).fits([job])


@pytest.fixture(scope="module")
def llada() -> Any:
    """LLaDA-8B without its weights, as if compiled."""
    with torch.device("meta"):
        model: Any = build(SHAPES["published"]["llada"]).to(torch.bfloat16)
    model.runner = GraphRunner(model, bucket=64, max_graphs=8)
    return model


def jobs(
    count: int,
    length: int = 384,
    *,
    cache: object = None,
    candidates: int = 0,
    sampler: Sampler = LESS,
    language: object = None,
    **selection: float,
) -> Any:
    """Requests with 256 new tokens, as far as memory goes."""
    options, bans = Options(selection=Selection(**selection)), Bans((), language=language)
    run = SimpleNamespace(cache=cache, sampler=sampler, options=options, bans=bans, guidance=0.0)
    request = SimpleNamespace(length=length, num_rows=1, widest=256, state_bytes=0, run=run)
    return [SimpleNamespace(request=request, candidates=candidates)] * count


def test_the_estimate_covers_the_memory_that_a_gpu_took(llada: Any) -> None:
    file = Path(__file__).parents[2] / "benchmarks/results/server_llada_nvidia-h200_2026-11-16.json"
    for rows in (1, 8):
        taken = json.loads(file.read_text())["runs"][str(rows)]["taken_bytes"]
        assert 0.9 * taken < DeviceMemory(llada, CPU, None).needed(jobs(rows)) < 2.5 * taken


def test_long_rows_caches_and_candidates_need_more(llada: Any) -> None:
    needed = DeviceMemory(llada, CPU, None).needed
    assert needed(jobs(32)) < needed(jobs(32, candidates=2))
    assert needed(jobs(1)) < needed(jobs(1, length=2304))
    two_copies = 2 * 32 * 384 * 32 * 2 * 4096 * 2  # of keys and values of 32 rows
    assert needed(jobs(32, cache="dual")) == needed(jobs(32)) + two_copies


@pytest.mark.parametrize(
    "kind",
    [{"sampler": Base()}, {"sampler": Threshold()}, {"temperature": 0.5}, {"language": "any"}],
    ids=str,
)
def test_requests_that_need_all_logits_need_as_much_as_with_candidates(llada: Any, kind: Any) -> None:
    needed = DeviceMemory(llada, CPU, None).needed
    assert needed(jobs(32, **kind)) == needed(jobs(32, candidates=2)) > needed(jobs(32))
    both = needed([*jobs(32), *jobs(1, **kind)]) - needed(jobs(33))
    assert both == 256 * 126464 * 6  # the logits of one row on top


@dataclass(frozen=True)
class Greedy(Base):
    """A sampler that once finds no memory for its decision."""

    failures: list[int] = field(default_factory=lambda: [1], compare=False)

    def decide(self, obs: Observation) -> Decision:
        if self.failures:
            self.failures.pop()
            raise torch.OutOfMemoryError
        return super().decide(obs)


def test_a_decision_that_finds_no_memory_is_made_again(model: Any) -> None:
    with Engine(model) as engine:
        served = engine.submit([5, 6], Greedy(), CONFIG).result(20)
    assert served.token_ids == generate(model, [[5, 6]], Base(), CONFIG)[0].token_ids


class Tight:
    """Raises as a GPU without memory does, so often."""

    def __init__(self, model: Any, times: int) -> None:
        self.forward, self.times = model.hidden_states, times

    def __call__(self, *inputs: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise torch.OutOfMemoryError
        return self.forward(*inputs)


def test_a_forward_that_finds_no_memory_is_run_again_without_the_graphs() -> None:
    model = compile(load(GOLDENS / "llada_tiny", device="cpu"), layers=False)
    model.tokenizer = tiny("llada_tiny").tokenizer
    [before] = generate(model, [[5, 6]], Base(), CONFIG)
    assert model.runner.captured
    model.hidden_states = Tight(model, times=1)
    with Engine(model) as engine:
        assert engine.submit([5, 6], Base(), CONFIG).result(20) == before
