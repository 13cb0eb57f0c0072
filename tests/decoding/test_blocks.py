"""Models that attend block by block: the layout, the exact cache, and rows of unequal prompts."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from zlib import crc32

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests import toy  # noqa: F401 sets up hypothesis
from tests.raises import raises_field
from unmask import SAMPLERS, GenerationConfig, Options, blank, decode, generate, make_sampler, plan
from unmask.bench.every_sampler import kinds
from unmask.decoding.append_cache import AppendCache, SideBySide
from unmask.decoding.canvas import lay_out
from unmask.models import random_model
from unmask.models.trunk import Trunk
from unmask.serving import Engine
from unmask.text.generate import prepare
from unmask.types import BlockGrid

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "mask_token_id": 39,
    "eos_token_id": 38,
    "pad_token_id": 38,
}
CONFIGS = {
    "sdar": {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "block_size": 4},
    "bd3lm": {"model_type": "a2d-qwen3", "architectures": ["A2DQwen3LMHeadModel"], "block_size": 4},
    "fast-dllm": {
        "model_type": "Fast_dLLM_Qwen",
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": 8,
    },
    "llada2": {
        "model_type": "llada2_moe",
        "architectures": ["LLaDA2MoeModelLM"],
        "block_size": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 16,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
    },
}
FAMILIES = list(CONFIGS)


@lru_cache
def model(family: str) -> Trunk:
    torch.manual_seed(FAMILIES.index(family))
    made = random_model({**SIZES, **CONFIGS[family]}, dtype=torch.float32)
    with torch.no_grad():  # confident enough for samplers to commit several tokens at a time
        made.embed.weight.mul_(2)
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1:  # and tokens depend on who attends to whom
                parameter.mul_(6 if ".attention." in name else 1.5)
    return made


def prompts(seed: int, rows: int) -> list[list[int]]:
    dice = random.Random(seed)
    return [[dice.randrange(38) for _ in range(dice.randrange(1, 14))] for _ in range(rows)]


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    length=st.integers(1, 20),
    block=st.integers(1, 8),
    origin=st.sampled_from(["row", "canvas"]),
)
def test_every_row_generates_in_the_same_blocks_and_has_room_for_its_text(sizes, length, block, origin):
    layout = lay_out(sizes, length, BlockGrid(length=block, origin=origin))
    assert layout.start % block == 0
    for size, padding, lead, masks in zip(sizes, layout.padding, layout.lead, layout.masks, strict=True):
        assert padding + size == layout.start + lead
        assert 0 <= lead < block
        if origin == "row":
            assert masks >= length
            assert padding % block == (lead + masks) % block == layout.columns % block == 0
        else:
            assert masks == length


def test_an_end_token_of_the_prompt_ends_no_text():
    canvas = blank([[1, 2, 3, 38]], 4, mask_id=39, pad_id=38, grid=BlockGrid(length=8))
    assert canvas.starts == [4]
    assert not canvas.finished((38,)).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_is_answered_though_it_ends_with_an_end_token(family):
    own = model(family)
    rows = [[*row, own.info.eos_ids[0]] for row in prompts(3, 4)]
    batch = generate(own, rows, "base", max_new_tokens=9)
    assert all(answer.steps for answer in batch)
    assert [generate(own, [row], "base", max_new_tokens=9)[0] for row in rows] == batch


@pytest.mark.parametrize("name", kinds())
def test_the_cache_is_exact_and_a_batch_equals_its_rows(name):
    seed = crc32(name.encode())
    rows, sampler, own = prompts(seed, 2), make_sampler(name), model(FAMILIES[seed % len(FAMILIES)])
    config = GenerationConfig(max_new_tokens=9, temperature=(0.0, 0.7)[seed % 2], seed=seed)
    batch = generate(own, rows, sampler, config)
    assert generate(own, rows, sampler, replace(config, cache="none")) == batch
    assert [generate(own, [row], sampler, config)[0] for row in rows] == batch


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("steps", "length"), [(5, 11), (9, 11), (12, 11), (7, 16)])
def test_a_row_gets_the_same_share_of_steps_alone_and_in_a_batch(family, steps, length):
    own, config = model(family), GenerationConfig(max_new_tokens=length, steps=steps)
    for name in ("base", "less"):
        rows, sampler = [[1] * 8, *prompts(steps, 4)], make_sampler(name)
        batch = generate(own, rows, sampler, config)
        assert [generate(own, [row], sampler, config)[0] for row in rows] == batch


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "settings"),
    [("prophet", {}), ("base", {"next_block_at": 0.6}), ("random", {"next_block_at": 0.6})],
)
def test_a_row_draws_the_same_numbers_alone_and_in_a_batch(family, name, settings):
    """Also where all columns are drawn for, of which a batch has more."""
    own, rows, sampler = model(family), [[1] * 8, *prompts(5, 3)], make_sampler(name)
    config = GenerationConfig(max_new_tokens=16, temperature=0.9, stop_at_eos=False, seed=3, **settings)
    batch = generate(own, rows, sampler, config)
    assert [generate(own, [row], sampler, config)[0] for row in rows] == batch


def test_a_short_last_block_gets_the_steps_of_the_others():
    blocks = prepare(
        model("bd3lm"), [[1]], make_sampler("base"), GenerationConfig(max_new_tokens=10, steps=7)
    ).plan.blocks
    assert [block.columns.stop - block.columns.start for block in blocks] == [4, 4, 2]
    assert [block.budget for block in blocks] == [3, 3, 3]


def test_fewer_steps_than_blocks_are_refused_whatever_the_batch():
    for rows in ([[1]], prompts(1, 4)):
        with raises_field("steps", 2):
            generate(model("sdar"), rows, "base", max_new_tokens=9, steps=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_finished_block_is_never_run_again(family):
    own, ran = model(family), []

    class Watched(AppendCache):
        def ran(self, columns):
            ran.append(columns)
            super().ran(columns)

    grid = own.info.grid
    canvas = blank([[1] * 9], 15, mask_id=39, pad_id=38, grid=grid)
    columns = canvas.tokens.shape[1] - canvas.start
    blocks = plan(canvas.start, columns, steps=columns, block_length=grid.length)
    decode(own, canvas, SAMPLERS["base"], blocks, Options(stop_at_eos=False), cache=Watched(grid.length))
    shifted = own.predicting(slice(1, 2)).start == 0
    assert all(part.stop - part.start <= 2 * grid.length for part in ran[1:])
    alone = [part for part in ran if part.stop - part.start <= grid.length + shifted]
    assert len(alone) == len(ran) - len(blocks.blocks)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_bound_costs_no_forwards(family):
    own = model(family)
    short, long = (
        generate(own, [[5, 6, 7]], SAMPLERS["first-mask"], GenerationConfig(max_new_tokens=bound, seed=1))[0]
        for bound in (20, 80)
    )
    assert long.token_ids[: len(short.token_ids)] == short.token_ids
    if short.finish == "eos":
        assert long == short


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["less", "klass", "llada2.1"])
def test_the_server_gives_every_request_what_it_gets_alone(family, name):
    own, rows = model(family), prompts(7, 5)
    engine = Engine(own, exact=True)  # else rounding depends on the neighbours, and so does a near tie
    engine.start()
    try:
        configs = [GenerationConfig(max_new_tokens=5 + 3 * row, temperature=0.0) for row in range(len(rows))]
        jobs = [
            engine.submit(row, make_sampler(name), config) for row, config in zip(rows, configs, strict=True)
        ]
        answers = [job.result(timeout=60) for job in jobs]
    finally:
        engine.close()
    alone = [
        generate(own, [row], make_sampler(name), config)[0] for row, config in zip(rows, configs, strict=True)
    ]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]
    assert [answer.forwards for answer in answers] == [answer.forwards for answer in alone]


@pytest.mark.parametrize("cache", [None, "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_requests_of_any_length_share_forwards_and_get_what_they_get_alone(family, cache):
    """Also where blocks count from column 0: such rows may move by whole blocks only."""
    own, rows = model(family), prompts(9, 8)
    configs = [
        GenerationConfig(max_new_tokens=7 + row, stop_at_eos=False, cache=cache) for row in range(len(rows))
    ]
    with Engine(own, exact=False) as engine:
        jobs = [
            engine.submit(row, make_sampler("base"), config)
            for row, config in zip(rows, configs, strict=True)
        ]
        answers = [job.result(timeout=60).token_ids for job in jobs]
    assert answers == [
        generate(own, row, "base", config).token_ids for row, config in zip(rows, configs, strict=True)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_side_by_side_use_their_own_caches(family):
    own, grid = model(family), model(family).info.grid
    block, rows = slice(2 * grid.length, 3 * grid.length), [1, 2]
    singles, caches = [], []
    for blocks in rows:  # the second row is a block longer
        tokens = torch.arange((blocks + 1) * grid.length)[None] * 7 % 38
        here, cache = slice(blocks * grid.length, (blocks + 1) * grid.length), AppendCache(grid.length)
        cache.start_block(here)
        own(tokens, None, here, cache)  # the prompt
        tokens = tokens.clone()
        tokens[:, here] = 39
        singles.append((tokens, own(tokens, None, here, cache)))
        caches.append((cache, tokens.shape[1]))
    longest = max(length for _, length in caches)
    joined = torch.cat(
        [torch.nn.functional.pad(tokens, (longest - tokens.shape[1], 0)) for tokens, _ in singles]
    )
    attend = torch.arange(longest) >= torch.tensor([[longest - length] for _, length in caches])
    together = own(joined, attend, block, SideBySide(caches))
    torch.testing.assert_close(together, torch.cat([logits for _, logits in singles]), atol=1e-4, rtol=1e-4)


def test_blocks_and_caches_that_do_not_fit_are_refused():
    own, rows = model("sdar"), [[1, 2]]
    with raises_field("block_length"):
        generate(own, rows, SAMPLERS["less"], GenerationConfig(max_new_tokens=8, block_length=3))
    with raises_field("cache"):
        generate(own, rows, SAMPLERS["less"], GenerationConfig(max_new_tokens=8, cache="dual"))
    with raises_field("cache"):
        generate(own, rows, SAMPLERS["klass"], GenerationConfig(max_new_tokens=8, cache="append"))
