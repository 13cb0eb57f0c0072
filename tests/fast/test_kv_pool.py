"""Requests with exact caches share captured forwards of a compiled model, in one pool of keys and values."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.server import TickLog
from tests.fast.test_blocks import DEVICE, NO_EXPERTS, fast, plain
from tests.raises import raises_field
from tests.text.conftest import tiny
from unmask import AppendCache, GenerationConfig, generate, make_sampler
from unmask.decoding.append_cache import SideBySide
from unmask.fast import kv_pool
from unmask.fast.compile import compile
from unmask.fast.graphs import GraphRunner
from unmask.fast.kv_pool import KVPool
from unmask.models.layers import PAGE
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Limits, RequestFailed
from unmask.serving.settings import Settings
from unmask.types import BlockGrid

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


def test_rows_share_a_forward_wherever_they_are_in_their_blocks():
    model, log = fast("sdar_tiny"), TickLog()
    engine = Engine(model, Limits(max_rows=4), log)
    config = GenerationConfig(max_new_tokens=16, stop_at_eos=False)
    for length in (1, 2, 3, 4):  # their first blocks have 3, 2, 1 and 4 masks
        engine.submit([7] * length, make_sampler("base"), config)
    with engine:
        pass
    assert len(log.ticks) > 10
    assert {tick.evaluations for tick in log.ticks} == {1}


def test_prompts_of_like_length_share_a_forward():
    model, log = fast("sdar_tiny"), TickLog()
    engine = Engine(model, Limits(max_rows=4), log)
    asked = [([7] * length, GenerationConfig(max_new_tokens=8)) for length in (61, 23, 55, 38)]
    jobs = [engine.submit(prompt, LESS, config) for prompt, config in asked]
    with engine:
        served = [job.result(timeout=60).token_ids for job in jobs]
    assert log.ticks[0].evaluations == 1
    assert served == alone(plain("sdar_tiny"), asked)


def in_blocks(length: int) -> Trunk:
    """A model whose blocks of this length begin at column 0 of a canvas, which may end inside a block."""
    model = plain("a2d_qwen3_tiny")
    grid = BlockGrid(length=length, origin="canvas")
    model.info = replace(model.info, grid=grid, block_length=length)
    return model


def test_a_block_that_the_canvas_cuts_off_takes_no_forward_of_its_own():
    model, reference = in_blocks(8), in_blocks(8)
    compile(model, layers=False)
    asked = [
        ([7] * prompt, GenerationConfig(max_new_tokens=new, stop_at_eos=False))
        for prompt, new in zip((3, 20, 33, 50, 64, 75, 90, 5), range(9, 25, 2), strict=True)
    ]
    assert serve(model, asked) == alone(reference, asked)
    assert {key.running for key in model.runner.captured if key.running < 64} == {8, 16}


def test_a_server_has_room_for_all_requests_that_it_admits():
    model, limits = fast("sdar_tiny"), Limits(max_rows=4, max_batch_tokens=1000, max_memory_mb=99)
    with Engine(model, limits) as engine:
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in mixed(7, 12)]
        assert all(job.result(timeout=60) for job in jobs)
    sizes = {key.columns for key in model.runner.captured}  # of the pool, to which a forward is bound
    assert sizes == {model.runner.kv_pool.columns}
    assert limits.max_batch_tokens <= model.runner.kv_pool.columns <= 1000 + 7 * PAGE


def test_the_pool_of_a_server_stays_within_its_memory():
    model = fast("sdar_tiny")
    with Engine(model, Limits(max_rows=256, max_memory_mb=4)) as engine:
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in mixed(11, 9)]
        assert all(job.result(timeout=60) for job in jobs)
    assert model.runner.kv_pool.num_bytes <= 2 << 20


@pytest.mark.parametrize("cache", [None, "none"])
def test_a_request_that_was_answered_once_is_answered_again(cache):
    """Though the pool takes a large part of the memory by then."""
    config = GenerationConfig(max_new_tokens=8, cache=cache)
    with Engine(fast("sdar_tiny"), Limits(max_memory_mb=17)) as engine:
        texts = [engine.submit([7] * 1000, LESS, config).result(timeout=60).text for _ in range(3)]
        assert engine.submit([7], LESS, config).result(timeout=60)
    assert len(set(texts)) == 1


def test_with_little_memory_requests_of_many_lengths_use_one_pool(monkeypatch):
    model, sizes = fast("sdar_tiny"), []
    config = GenerationConfig(max_new_tokens=8)
    with Engine(model, Limits(max_memory_mb=17)) as engine:
        for length in (1000, 10, 900, 500, 1000):
            assert engine.submit([7] * length, LESS, config).result(timeout=60)
            sizes.append(model.runner.kv_pool.columns)
    assert len(set(sizes)) == 1


def test_a_small_pool_grows_again_for_a_request_that_does_not_fit_it():
    model, sizes = fast("sdar_tiny"), []
    with Engine(model, Limits(max_memory_mb=17)) as engine:
        for length, cache in ((10, None), (1100, "none"), (10, None), (600, None)):
            config = GenerationConfig(max_new_tokens=8, cache=cache)
            assert engine.submit([7] * length, LESS, config).result(timeout=60)
            sizes.append(model.runner.kv_pool.columns)
    assert sizes[3] > sizes[1] == sizes[2]


def test_guided_requests_count_beside_the_pool():
    model, config = fast("sdar_tiny"), GenerationConfig(max_new_tokens=8)
    engine = Engine(model, Limits(max_memory_mb=99))
    [plain_job, guided] = [
        engine.submit([7] * 500, LESS, replace(config, guidance=guidance)) for guidance in (0.0, 0.5)
    ]
    memory = engine._memory
    memory.prepare(engine.limits, plain_job)
    memory.total = memory.needed([guided]) + model.runner.kv_pool.num_bytes
    assert memory.fits([guided])
    memory.total -= 1
    assert not memory.fits([guided])


def test_a_server_that_finds_no_memory_for_a_pool_answers_all_the_same(monkeypatch):
    def fail(*given):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(GraphRunner, "size_pool", fail)
    model, asked = fast("sdar_tiny"), mixed(8, 4)
    with Engine(model, Limits(max_memory_mb=99)) as engine:
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in asked]
        served = [job.result(timeout=60).token_ids for job in jobs]
    assert served == alone(plain("sdar_tiny"), asked)


def test_a_compiled_model_runs_in_one_engine_at_a_time():
    model, [(prompt, config)] = fast("sdar_tiny"), mixed(12, 1)
    with Engine(model), raises_field("model", type(model).__name__):
        Engine(model).start()
    for _ in range(2):
        with Engine(model) as engine:
            assert engine.submit(prompt, LESS, config).result(timeout=60)


def test_an_engine_that_cannot_start_again_leaves_the_model_to_others():
    model, [(prompt, config)] = fast("sdar_tiny"), mixed(12, 1)
    with Engine(model) as ended:
        pass
    with pytest.raises(RuntimeError):
        ended.start()
    with Engine(model) as engine:
        assert engine.submit(prompt, LESS, config).result(timeout=60)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("caches", [(None, "none"), ("none", None)])
def test_requests_with_and_without_a_cache_run_side_by_side(caches, compiled):
    model = fast("sdar_tiny") if compiled else plain("sdar_tiny")
    asked = [([7] * 9, GenerationConfig(max_new_tokens=12, cache=caches[n % 2])) for n in range(4)]
    assert serve(model, asked) == alone(plain("sdar_tiny"), asked)


def test_an_engine_that_is_made_beside_a_running_one_does_not_disturb_it():
    model, asked = fast("sdar_tiny"), mixed(10, 8)
    with Engine(model, Limits(max_rows=4, max_batch_tokens=1000)) as engine:
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in asked]
        for number in range(200):
            Engine(model, Limits(max_batch_tokens=2000 + 500 * number))
        served = [job.result(timeout=60).token_ids for job in jobs]
    assert served == alone(plain("sdar_tiny"), asked)


def alike(count: int, *, start: int, lengths: Sequence[int] = (150,)) -> Asked:
    """Requests whose prompts begin with the same tokens."""
    dice = random.Random(start)
    head = [dice.randrange(3, 30) for _ in range(max(lengths))]
    return [
        ([*head[: lengths[n % len(lengths)]], 3 + n], GenerationConfig(max_new_tokens=8 + n))
        for n in range(count)
    ]


def test_a_prompt_that_begins_like_an_earlier_one_runs_only_the_rest():
    model, [first, *others] = fast("sdar_tiny"), alike(4, start=20, lengths=(150,))
    with Engine(model, Limits(max_rows=4)) as engine:
        served = [engine.submit(first[0], LESS, first[1]).result(timeout=60).token_ids]
        model.runner.captured.clear()
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in others]
        served += [job.result(timeout=60).token_ids for job in jobs]
    assert served == alone(plain("sdar_tiny"), [first, *others])
    assert max(key.running for key in model.runner.captured) <= 64  # of 152: two pages are there


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1000), family=st.sampled_from(["sdar_tiny", "fast_dllm_v2_tiny"]))
def test_prompts_that_begin_alike_get_the_tokens_of_runs_alone(seed, family):
    asked = alike(9, start=seed, lengths=(64, 128, 127, 200, 63)) + mixed(seed, 3)
    random.Random(seed).shuffle(asked)
    model = fast(family)
    with Engine(model, Limits(max_rows=3, max_batch_tokens=900)) as engine:
        jobs = [engine.submit(prompt, LESS, config) for prompt, config in asked]
        served = [job.result(timeout=60).token_ids for job in jobs]
    assert served == alone(plain(family), asked)


def test_a_pool_that_grows_keeps_the_texts(monkeypatch):
    monkeypatch.setattr(kv_pool, "FIRST_PAGES", 3)
    model, asked = fast("sdar_tiny"), mixed(2, 8, longest=150)
    assert serve(model, asked, rows=8) == alone(plain("sdar_tiny"), asked)
    assert model.runner.kv_pool.columns > 8 * PAGE


def test_requests_that_end_leave_their_pages_even_if_their_jobs_are_kept():
    model = fast("sdar_tiny")
    with Engine(model, Limits(max_rows=4, max_batch_tokens=1000)) as engine:
        for _ in range(3):
            kept = [engine.submit(prompt, LESS, config) for prompt, config in mixed(3, 8)]
            assert all(job.result(timeout=60) for job in kept)
    del engine
    gc.collect()
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
    pytest.importorskip("uvicorn")
    from unmask.serving.server import warm_up_server

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
    serve(model, mixed(6, 4))
    for side in (side for sides in model.runner.kv_pool.layers for side in sides):
        side[PAGE:].fill_(torch.nan)  # all but the blank page
    gc.collect()
    assert serve(model, asked) == alone(plain("sdar_tiny"), asked)


def test_pages_that_others_took_are_not_found_any_more(monkeypatch):
    model, reference = fast("sdar_tiny"), plain("sdar_tiny")
    for start in (30, 31, 32, 33, 30):  # the pool has room for two of these prompts
        asked = alike(1, start=start)
        assert serve(model, asked) == alone(reference, asked)
    assert model.runner.kv_pool.columns == kv_pool.FIRST_PAGES * PAGE


def test_nobody_shares_the_pages_of_a_broken_request():
    model, [request] = fast("sdar_tiny"), alike(1, start=21)
    weight = model.norm.weight.clone()
    model.norm.weight.data.fill_(torch.nan)
    with pytest.raises(RequestFailed):
        serve(model, [request])
    for side in (side for sides in model.runner.kv_pool.layers for side in sides):
        side[PAGE:].fill_(torch.nan)
    model.norm.weight.data.copy_(weight)
    assert serve(model, [request]) == alone(plain("sdar_tiny"), [request])


def test_nobody_shares_pages_of_other_weights():
    model, reference, asked = fast("sdar_tiny"), plain("sdar_tiny"), alike(2, start=22)
    assert serve(model, asked) == alone(reference, asked)
    for changed in (model, reference):
        for parameter in changed.parameters():
            parameter.data.mul_(1.5)
    assert serve(model, asked) == alone(reference, asked)


def test_pages_that_nobody_will_look_for_are_taken_first():
    pool, prompt = KVPool(plain("sdar_tiny")), torch.arange(2 * PAGE) % 30

    def admit(cache: AppendCache, pages: int) -> AppendCache:
        assert pool.missing([(cache, pages * PAGE)]) == 0
        pool.admit(cache, pages * PAGE)
        return cache

    pool.grow(6)
    first, second = AppendCache(4), AppendCache(4)
    first.start_block(slice(2 * PAGE, 2 * PAGE + 4))
    pool.begin(first, prompt, 0)
    admit(first, 3)
    first.ran(slice(0, 2 * PAGE + 4))
    admit(first, 3)  # its prompt has run
    other = admit(AppendCache(4), 3)
    del first
    gc.collect()
    pool.missing([])
    del other
    gc.collect()
    admit(AppendCache(4), 4)
    pool.begin(second, prompt, 0)
    assert second.final == 2 * PAGE


def test_a_row_may_leave_blocks_out():
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
