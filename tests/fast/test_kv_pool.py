"""Requests with exact caches share captured forwards of a compiled model, in one pool of keys and values."""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fast.test_blocks import DEVICE, NO_EXPERTS, fast, plain
from tests.text.conftest import tiny
from unmask import AppendCache, GenerationConfig, generate, make_sampler
from unmask.decoding.append_cache import SideBySide
from unmask.fast import kv_pool
from unmask.fast.kv_pool import PAGE, KVPool
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Limits
from unmask.serving.server import warm_up_server
from unmask.serving.settings import Settings

LESS = make_sampler("less")
FAMILIES = [
    "sdar_tiny",
    "fast_dllm_v2_tiny",
    pytest.param("llada2_tiny", marks=[pytest.mark.slow, NO_EXPERTS]),
]
Asked = list[tuple[list[int], GenerationConfig]]


def serve(model: Trunk, asked: Asked, *, rows: int = 4, exact: bool = False) -> list[tuple[int, ...]]:
    with Engine(model, Limits(max_rows=rows), exact=exact) as engine:
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in asked]
        return [job.result(timeout=60).token_ids for job in jobs]


def alone(model: Trunk, asked: Asked) -> list[tuple[int, ...]]:
    return [generate(model, [prompt], LESS, config)[0].token_ids for prompt, config in asked]


def mixed(seed: int, count: int, longest: int = 90) -> Asked:
    """Requests of many lengths, which join and leave at different times."""
    dice = random.Random(seed)
    return [
        (
            [dice.randrange(3, 30) for _ in range(dice.randint(1, longest))],
            GenerationConfig(max_new_tokens=dice.randint(16, 40), steps=dice.choice([None, 16])),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_requests_that_join_and_leave_get_the_tokens_of_runs_alone(family, exact):
    asked = mixed(1, 9)
    assert serve(fast(family), asked, exact=exact) == alone(plain(family), asked)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1000), rows=st.integers(1, 6))
def test_any_mix_of_requests_gets_the_tokens_of_runs_alone(seed, rows):
    asked = mixed(seed, 6)
    assert serve(fast("sdar_tiny"), asked, rows=rows) == alone(plain("sdar_tiny"), asked)


def test_a_pool_that_grows_keeps_the_texts(monkeypatch):
    monkeypatch.setattr(kv_pool, "FIRST_PAGES", 3)
    model, asked = fast("sdar_tiny"), mixed(2, 8, longest=150)
    assert serve(model, asked, rows=8) == alone(plain("sdar_tiny"), asked)
    assert model.runner.kv_pool.columns > 8 * PAGE


def test_requests_that_end_leave_their_pages_even_if_their_jobs_are_kept():
    model = fast("sdar_tiny")
    with Engine(model, Limits(max_rows=4)) as engine:
        for _ in range(3):
            kept = [engine.submit(prompt, LESS, config) for prompt, config in mixed(3, 8)]
            assert all(job.result(timeout=60) for job in kept)
    del engine
    gc.collect()
    assert model.runner.kv_pool.columns <= 16 * PAGE  # four rows of up to three pages, and two more
    assert not model.runner.kv_pool.tenants


def test_a_growth_without_memory_is_made_up_for_later(monkeypatch):
    pool, real, calls = KVPool(plain("sdar_tiny")), torch.Tensor.new_zeros, []

    def fail_in_the_second_layer(tensor, *size):
        calls.append(size)
        if len(calls) == 3:
            raise torch.OutOfMemoryError
        return real(tensor, *size)

    monkeypatch.setattr(torch.Tensor, "new_zeros", fail_in_the_second_layer)
    with pytest.raises(torch.OutOfMemoryError):
        pool.grow(20)
    assert pool.columns == 0
    pool.grow(30)
    assert pool.columns == 32 * PAGE
    assert pool.missing([(AppendCache(4), 30 * PAGE)]) == 0
    assert pool.missing([(AppendCache(4), 31 * PAGE)]) == 1
    assert {len(side) for sides in pool.layers for side in sides} == {pool.columns}


def test_all_sizes_of_a_warm_up_stay_captured():
    model = fast("sdar_tiny")
    model.tokenizer = tiny("llada_tiny").tokenizer
    settings = Settings(sampler=LESS, config=GenerationConfig(max_new_tokens=100))
    warm_up_server(model, settings=settings, limits=Limits(max_rows=8), exact=False)
    assert {key.rows for key in model.runner.captured} == {1, 2, 4, 8}


def test_a_guided_request_alone_is_captured(monkeypatch):
    model, asked = fast("sdar_tiny"), [(p, replace(c, guidance=0.5)) for p, c in mixed(6, 2)]
    plain_ones, run_layers = [], model.run_layers
    monkeypatch.setattr(model, "run_layers", lambda *args: plain_ones.append(args) or run_layers(*args))
    served = serve(model, asked, rows=2)  # a guided request takes both
    assert len(plain_ones) <= 2  # those of the prompts
    assert served == alone(plain("sdar_tiny"), asked)


def test_memory_that_is_reclaimed_takes_the_pool_along_only_if_nobody_needs_it():
    model, asked = fast("sdar_tiny"), mixed(4, 3)
    expected = serve(model, asked)
    gc.collect()
    model.runner.clear()
    assert model.runner.kv_pool.columns == 0
    assert serve(model, asked) == expected


def test_a_broken_request_leaves_no_nan_to_the_next():
    model, asked = fast("sdar_tiny"), mixed(5, 4)
    expected = serve(model, asked)
    for side in (side for sides in model.runner.kv_pool.layers for side in sides):
        side[PAGE:].fill_(torch.nan)  # all but the blank page
    gc.collect()
    assert serve(model, asked) == expected


def test_a_row_may_leave_the_pool_for_a_plain_forward_and_come_back():
    model, reference = fast("sdar_tiny"), plain("sdar_tiny")
    tokens = torch.arange(40, device=DEVICE)[None] * 7 % 30 + 3
    caches = [AppendCache(4), AppendCache(4)]
    plans = [slice(8, 12), slice(12, 16), slice(28, 32), slice(32, 36)]  # the third leaves blocks out
    for block in plans:
        for cache in caches:
            cache.start_block(block)
        for _ in range(2):
            own = tokens[:, : block.stop]
            pooled = model(own, None, block, SideBySide([(caches[0], block.stop)]))
            torch.testing.assert_close(pooled, reference(own, None, block, caches[1]), atol=1e-4, rtol=1e-4)
    assert len(model.runner.kv_pool.tenants) == 1
