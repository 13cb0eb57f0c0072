"""A compiled model that attends block by block decodes what the plain one does."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import zip_longest

import pytest
import torch

from tests.conftest import GOLDENS
from unmask import AppendCache, GenerationConfig, generate, make_sampler
from unmask.fast.compile import compile
from unmask.fast.warm_up import warm_up
from unmask.models import load
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Limits
from unmask.text.generate import prepare

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NO_EXPERTS = pytest.mark.skipif(DEVICE == "cuda", reason="experts run in bfloat16, which rounds differently")
PAIRS = [
    ("sdar_tiny", "less"),
    pytest.param("llada2_tiny", "llada2.1", marks=NO_EXPERTS),
    ("fast_dllm_v2_tiny", "less-speculative"),
]
SLOW_FAMILY = pytest.param("llada2_tiny", marks=[pytest.mark.slow, NO_EXPERTS])
PROMPTS = [[7, 42, 99], [5, 6, 8, 9, 10], [3] * 9]
CONFIGS = {
    "append": GenerationConfig(max_new_tokens=14),
    "no cache": GenerationConfig(max_new_tokens=14, cache="none"),
    "guided": GenerationConfig(max_new_tokens=14, guidance=0.5),
}


def plain(family: str) -> Trunk:
    dtype = "bfloat16" if DEVICE == "cuda" and family == "llada2_tiny" else "float32"
    return load(str(GOLDENS / "families" / family), device=DEVICE, dtype=dtype)


def fast(family: str, *, decisions: bool = False, **options: object) -> Trunk:
    """A compiled model whose layers are plain, and whose decisions may be."""
    model = compile(plain(family), layers=False, **options)
    model.executor = functools.partial(model.executor, compiled=decisions)
    return model


def texts(model: Trunk, name: str, config: GenerationConfig) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in generate(model, PROMPTS, make_sampler(name), config)]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_it_writes_the_same_tokens(traced, family, name):
    decisions = name != "less-speculative"  # it takes long to trace
    for kind, config in CONFIGS.items():
        if kind != "guided" or name != "less-speculative":
            assert texts(fast(family, decisions=decisions), name, config) == texts(
                plain(family), name, config
            ), kind


@pytest.mark.parametrize("family", ["sdar_tiny", "fast_dllm_v2_tiny", SLOW_FAMILY])
def test_captured_forwards_with_an_append_cache_give_the_tokens_of_plain_ones(family):
    model, config = fast(family, bucket=16), GenerationConfig(max_new_tokens=9, steps=6)
    assert texts(model, "less", config) == texts(plain(family), "less", config)
    assert model.runner.finished > 0  # some forwards were begun early
    assert all(key.keys for key in model.runner.captured)


def test_generations_with_append_caches_may_take_turns():
    def runs(model):
        config = GenerationConfig(max_new_tokens=9, steps=6)
        return [prepare(model, [prompt], make_sampler("less"), config).steps for prompt in PROMPTS]

    in_turns = zip(*zip_longest(*runs(fast("sdar_tiny", graphs=3))), strict=True)
    for steps, alone in zip(in_turns, runs(plain("sdar_tiny")), strict=True):
        *_, last = filter(None, steps)
        *_, expected = alone
        assert torch.equal(last.tokens, expected.tokens)


def test_a_row_that_ends_leaves_the_captured_cache():
    model, reference = fast("sdar_tiny"), plain("sdar_tiny")
    answers = []
    for each in (model, reference):
        first = generate(each, PROMPTS, make_sampler("less"), CONFIGS["append"])
        each.info = replace(
            each.info, eos_ids=(first[0].token_ids[1],)
        )  # ends the first row in its first block
        answers.append(texts(each, "less", CONFIGS["append"]))
    assert answers[0] == answers[1]
    assert {key.rows for key in model.runner.captured} == {2, 3}


def test_a_broken_generation_leaves_no_nan_to_the_next():
    model = fast("sdar_tiny")
    expected = texts(model, "less", CONFIGS["append"])
    for store in model.runner.stores.values():
        for side in (side for sides in store.layers for side in sides):
            side.fill_(torch.nan)
    assert texts(model, "less", CONFIGS["append"]) == expected


def test_a_generation_with_an_append_cache_goes_on_after_its_memory_is_reclaimed(monkeypatch):
    def refuse(*given, **options):
        raise torch.OutOfMemoryError

    model, steps = fast("sdar_tiny"), []
    for step in prepare(model, PROMPTS, make_sampler("less"), CONFIGS["append"]).steps:
        steps.append(step)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "clone", refuse)
            model.runner.clear()
    *_, expected = prepare(plain("sdar_tiny"), PROMPTS, make_sampler("less"), CONFIGS["append"]).steps
    assert torch.equal(steps[-1].tokens, expected.tokens)


def test_few_graphs_serve_all_blocks_with_an_append_cache():
    model = fast("sdar_tiny", bucket=16)
    texts(model, "less", CONFIGS["append"])
    assert {key.running for key in model.runner.captured} == {4, 8}  # of 5 blocks; the prompt runs plain


def test_a_long_canvas_is_not_seen_where_it_is_empty():
    model, n = fast("sdar_tiny"), 2048
    cache = AppendCache(4)
    tokens = torch.full((1, n), model.info.mask_id, device=DEVICE)
    for block in (slice(504, 508), slice(508, 512), slice(512, 516)):
        cache.start_block(block)
        model(tokens, None, block, cache)
    assert [key.keys for key in model.runner.captured] == [512, 1024]


def test_few_graphs_serve_all_blocks_without_a_cache():
    model = fast("sdar_tiny", bucket=16)
    texts(model, "less", CONFIGS["no cache"])
    assert {key.running for key in model.runner.captured} == {16, 32}  # of 5 blocks


def test_it_warms_up_and_serves():
    model = fast("sdar_tiny")
    assert warm_up(model, make_sampler("less"), CONFIGS["append"], rows=(1, 2)) > 0
    with Engine(model) as engine:
        jobs = [engine.submit(prompt, make_sampler("less"), CONFIGS["append"]) for prompt in PROMPTS]
        assert all(job.result(timeout=60).forwards > 0 for job in jobs)


@pytest.mark.parametrize("config", [CONFIGS["append"], CONFIGS["guided"]], ids=["append", "guided"])
@pytest.mark.parametrize("rows", [2, 6])  # a guided request takes two
def test_a_server_writes_the_same_tokens(config, rows):
    model, less = fast("sdar_tiny", bucket=16), make_sampler("less")
    with Engine(model, Limits(max_rows=rows)) as engine:
        jobs = [engine.submit(prompt, less, config) for prompt in PROMPTS]
        served = [job.result(timeout=60).token_ids for job in jobs]
    assert served == texts(plain("sdar_tiny"), "less", config)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_server_captures_all_forwards(rows, monkeypatch):
    model, prompts = fast("sdar_tiny"), [[3 + number] * (1 + 5 * number) for number in range(7)]
    plain_ones, run_layers = [], model.run_layers
    monkeypatch.setattr(model, "run_layers", lambda *args: plain_ones.append(args) or run_layers(*args))
    with Engine(model, Limits(max_rows=rows)) as engine:
        jobs = [engine.submit(prompt, make_sampler("less"), CONFIGS["append"]) for prompt in prompts]
        assert all(job.result(timeout=60).forwards > 2 for job in jobs)
    assert not plain_ones
    assert {key.running for key in model.runner.captured} == {4, 8, 64}  # a block, two of them, a prompt
    assert {key.rows for key in model.runner.captured} <= ({1} if rows == 1 else {1, 2, 4})
