"""A compiled model that attends block by block decodes what the plain one does."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.conftest import GOLDENS
from unmask import GenerationConfig, generate, make_sampler
from unmask.fast.compile import compile
from unmask.fast.warm_up import warm_up
from unmask.models import load
from unmask.models.trunk import Trunk
from unmask.serving import Engine

FAMILIES = ["sdar_tiny", "llada2_tiny", "fast_dllm_v2_tiny"]
PAIRS = list(zip(FAMILIES, ["less", "llada2.1", "less-speculative"], strict=True))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = [[7, 42, 99], [5, 6, 8, 9, 10], [3] * 9]
CONFIGS = {
    "append": GenerationConfig(max_new_tokens=14),
    "no cache": GenerationConfig(max_new_tokens=14, cache="none"),
    "guided": GenerationConfig(max_new_tokens=14, guidance=0.5),
}


def plain(family: str) -> Trunk:
    dtype = "bfloat16" if DEVICE == "cuda" else "float32"  # experts are compiled in bfloat16 alone
    return load(str(GOLDENS / "families" / family), device=DEVICE, dtype=dtype)


def fast(family: str, *, decisions: bool = False, **options: object) -> Trunk:
    """A compiled model whose layers are plain, and whose decisions may be."""
    model = compile(plain(family), layers=False, **options)
    model.executor = functools.partial(model.executor, compiled=decisions)
    return model


def watching(compiled: list[object], graph: torch.fx.GraphModule, _: object) -> object:
    """A backend that compiles nothing, and takes note of what it was given."""
    compiled.append(graph)
    return graph.forward


def texts(model: Trunk, name: str, config: GenerationConfig) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in generate(model, PROMPTS, make_sampler(name), config)]


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="bfloat16 rounds differently")
@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_it_writes_the_same_tokens(traced, family, name):
    decisions = name != "less-speculative"  # it takes long to trace
    for kind, config in CONFIGS.items():
        if kind != "guided" or name != "less-speculative":
            assert texts(fast(family, decisions=decisions), name, config) == texts(
                plain(family), name, config
            ), kind


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_compiled_for_no_length_of_an_append_cache(family):
    model, compiled = compile(plain(family)), []
    for layer in (*model.layers, model.norm):
        watch = functools.partial(watching, [] if layer is model.norm else compiled)
        layer.compile(backend=watch, dynamic=False)
    model.executor = functools.partial(model.executor, compiled=False)
    texts(model, "less", CONFIGS["append"])
    assert not compiled


def test_few_graphs_serve_all_blocks_without_a_cache():
    model = fast("sdar_tiny", bucket=16)
    texts(model, "less", CONFIGS["no cache"])
    assert {key.running for key in model.runner.captured} == {16, 32}  # of 5 blocks


def test_it_warms_up_and_serves():
    model = fast("sdar_tiny")
    assert warm_up(model, make_sampler("less"), CONFIGS["append"], rows=(1, 2)) > 0
    engine = Engine(model)
    engine.start()
    try:
        jobs = [engine.submit(prompt, make_sampler("less"), CONFIGS["append"]) for prompt in PROMPTS]
        assert all(job.result(timeout=60).forwards > 0 for job in jobs)
    finally:
        engine.close()
