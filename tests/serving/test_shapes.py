"""A compiled model meets few shapes, whatever the lengths of requests."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import GOLDENS
from tests.text.conftest import tiny
from unmask import GenerationConfig, compile, generate, load
from unmask.serving import Engine, Limits
from unmask.serving.shapes import FEW_COLUMNS, MAX_COLUMNS, round_length, split_rows


@given(length=st.integers(1, 1 << 20), bucket=st.sampled_from([1, 16, 64]))
def test_a_padded_row_is_at_most_a_quarter_longer_or_less_than_a_bucket(length: int, bucket: int) -> None:
    padded = round_length(length, bucket)
    assert padded % bucket == 0
    assert 0 <= padded - length < max(bucket, length / 4)


def test_lengths_up_to_4096_need_few_shapes() -> None:
    lengths = {round_length(length, 64) for length in range(257, 4097)}
    assert len(lengths) == 16
    assert (
        len({(size, length) for length in lengths for n in range(1, 129) for size in _sizes(n, length)}) <= 44
    )


def _sizes(count: int, length: int) -> list[int]:
    return [1 << (size - 1).bit_length() for size in split_rows(count, length)]


@given(count=st.integers(1, 300), length=st.integers(1, 10000))
def test_every_row_runs_once_and_only_short_forwards_have_empty_places(count: int, length: int) -> None:
    sizes = split_rows(count, length)
    assert sum(sizes) == count
    for size, places in zip(sizes, _sizes(count, length), strict=True):
        assert size == 1 or places * length <= MAX_COLUMNS
        assert size == places or places * length <= FEW_COLUMNS


@pytest.fixture
def compiled() -> Any:
    model = compile(load(GOLDENS / "llada_tiny", device="cpu"), layers=False, bucket=8)
    model.tokenizer = tiny("llada_tiny").tokenizer
    return model


def test_a_compiled_model_pads_few_columns_and_gives_the_same_texts(compiled: Any) -> None:
    dice = random.Random(0)
    prompts = [[5 + number] * dice.randint(1, 60) for number in range(9)]
    config = GenerationConfig(max_new_tokens=8, block_length=None, steps=2)
    engine = Engine(compiled, Limits(max_rows=16))
    jobs = [engine.submit(prompt, config=config) for prompt in prompts]
    with engine:
        together = [job.result(60) for job in jobs]
    plain = tiny("llada_tiny")
    assert together == [generate(plain, [prompt], config=config)[0] for prompt in prompts]
    lengths = {round_length(len(prompt) + 8, 8) for prompt in prompts}
    assert {key.columns for key in compiled.runner.captured} == lengths


def test_an_exact_engine_pads_no_row_of_a_compiled_model_further_than_offline(compiled: Any) -> None:
    config = GenerationConfig(max_new_tokens=8, block_length=None, steps=2)
    with Engine(compiled, exact=True) as engine:
        engine.submit([5] * 73, config=config).result(60)
    served = set(compiled.runner.captured)
    compiled.runner.captured.clear()
    generate(compiled, [[5] * 73], config=config)
    assert {key.columns for key in served} == {key.columns for key in compiled.runner.captured} == {88}


def test_the_thread_of_an_engine_may_compile_many_shapes(compiled: Any) -> None:
    from torch._dynamo import config

    limits = []
    hook = compiled.embed.register_forward_hook(lambda *_: limits.append(config.cache_size_limit))
    with Engine(compiled) as engine:
        engine.submit([5, 6], config=GenerationConfig(max_new_tokens=2)).result(60)
    hook.remove()
    assert min(limits) >= 64
