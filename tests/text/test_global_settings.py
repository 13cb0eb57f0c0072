"""Settings of torch that hold for the whole process do not change a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.checkpoints import write_checkpoint
from unmask import GenerationConfig, generate, make_sampler
from unmask.models import load
from unmask.models.trunk import Trunk

PROMPTS = ["Solve the equation: 3x + 5 = 20.", "the cat"]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "float64": partial(default_dtype, torch.float64),
    "bfloat16": partial(default_dtype, torch.bfloat16),
    "float16": partial(default_dtype, torch.float16),
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
}


@pytest.fixture(scope="module", params=["llada_tiny", "dream_tiny"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("settings") / "checkpoint", request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Trunk:
    return load(folder, device="cpu")


def texts(model: Trunk, sampler: str, temperature: float) -> list[tuple[int, ...]]:
    config = GenerationConfig(max_new_tokens=16, temperature=temperature, seed=7)
    return [tuple(answer.token_ids) for answer in generate(model, PROMPTS, make_sampler(sampler), config)]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("sampler", "temperature"), [("less", 0.0), ("klass", 0.9), ("random", 0.9)])
def test_a_setting_of_torch_changes_no_text(
    model: Trunk, setting: str, sampler: str, temperature: float
) -> None:
    expected = texts(model, sampler, temperature)
    with SETTINGS[setting]():
        assert texts(model, sampler, temperature) == expected


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", ["auto", "int8", "bfloat16"])
def test_a_model_loaded_under_a_setting_is_the_same(folder: Path, setting: str, dtype: str) -> None:
    expected = load(folder, device="cpu", dtype=dtype)
    with SETTINGS[setting]():
        loaded = load(folder, device="cpu", dtype=dtype)
        under = texts(loaded, "less", 0.9)
    assert {name: t.dtype for name, t in loaded.state_dict().items()} == {
        name: t.dtype for name, t in expected.state_dict().items()
    }
    assert under == texts(expected, "less", 0.9)


def test_a_setting_is_as_before_after_a_text(model: Trunk) -> None:
    with SETTINGS["autocast"]():
        texts(model, "less", 0.0)
        assert torch.is_autocast_enabled("cpu")


def test_autocast_still_serves_training(folder: Path) -> None:
    model = load(folder, device="cpu").requires_grad_(True)
    tokens = torch.arange(9)[None]
    with SETTINGS["autocast"]():
        assert model(tokens, None, slice(2, 6), None).dtype == torch.bfloat16
        assert model.requires_grad_(False)(tokens, None, slice(2, 6), None).dtype == torch.float32
