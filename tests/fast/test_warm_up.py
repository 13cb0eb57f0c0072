"""Warming up runs the shapes to come, and changes nothing else."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.text.conftest import tiny as shared
from tests.text.scripted import EOS, MASK, saying
from unmask import LESS, GenerationConfig, compile, generate
from unmask.fast.load import is_compiled
from unmask.fast.warm_up import batch_sizes, warm_up
from unmask.models.trunk import Trunk

CONFIG = GenerationConfig(max_new_tokens=16)


def tiny(name: str) -> Trunk:
    """A checkpoint that may be compiled: other tests share the usual one."""
    return deepcopy(shared(name))


def test_every_batch_size_runs_on_the_canvas_that_it_will_have():
    model = saying("some text that is long enough")
    warm_up(model, LESS(), CONFIG, rows=(1, 2, 4), prompt_tokens=10)
    assert [tuple(tokens.shape) for tokens in model.seen[::3]] == [(1, 26), (2, 26), (4, 26)]
    for tokens in model.seen:
        assert not {MASK, EOS} & set(tokens[:, :10].flatten().tolist())


def test_a_guided_run_is_warmed_up_with_both_of_its_rows():
    model = saying("some text that is long enough")
    warm_up(model, LESS(), replace(CONFIG, guidance=0.5))
    assert len(model.seen[0]) == 2


def test_the_prompt_shrinks_where_the_model_reads_no_more():
    model = saying("text")
    model.info = replace(model.info, max_length=20)
    warm_up(model, LESS(), CONFIG)
    assert model.seen[0].shape == (1, 20)


@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
@pytest.mark.parametrize("ready", [False, True], ids=["plain", "compiled"])
def test_a_model_writes_the_same_text_after_a_warm_up(cache, ready):
    model, config = tiny("llada_tiny"), replace(CONFIG, cache=cache, temperature=0.5, seed=3)
    [before] = generate(model, ["hello"], LESS(), config)
    if ready:
        compile(model, layers=False)
    state = torch.get_rng_state()
    assert warm_up(model, LESS(), config, rows=(1, 2)) > 0
    assert torch.equal(torch.get_rng_state(), state)
    [after] = generate(model, ["hello"], LESS(), config)
    assert after.token_ids == before.token_ids


def test_a_seed_per_prompt_and_stop_strings_do_not_matter():
    config = replace(CONFIG, seed=(1, 2, 3), stop=("text",))
    assert warm_up(saying("text"), LESS(), config, rows=(1, 2)) > 0


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (16, (1, 2, 4, 8, 16)), (6, (1, 2, 4, 6))]
)
def test_batch_sizes_double_up_to_the_largest(most, sizes):
    assert batch_sizes(most) == sizes


def test_a_model_knows_whether_it_is_compiled():
    model = tiny("dream_tiny")
    assert not is_compiled(model)
    assert is_compiled(compile(model, layers=False))
    assert not is_compiled(saying("text"))
