"""The tiny golden checkpoints with a small byte-level tokenizer of their own."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.checkpoints import write_tokenizer
from tests.conftest import GOLDENS
from unmask.models import load
from unmask.models.text.tokens import Tokenizer
from unmask.models.trunk import Trunk


def build_tokenizer(name: str) -> Tokenizer:
    """A tokenizer whose special ids are those of the checkpoint."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        for file in ("config.json", "generation_config.json"):
            shutil.copy(GOLDENS / name / file, folder)
        write_tokenizer(folder, name)
        return Tokenizer.from_folder(folder)


@cache
def tiny(name: str) -> Trunk:
    """A golden checkpoint that reads and writes text."""
    model = load(GOLDENS / name, device="cpu", dtype="float32")
    model.tokenizer = build_tokenizer(name)
    return model


@pytest.fixture(params=("llada_tiny", "dream_tiny"))
def model(request: pytest.FixtureRequest) -> Trunk:
    return tiny(request.param)


@pytest.fixture
def llada() -> Trunk:
    return tiny("llada_tiny")


@pytest.fixture
def dream() -> Trunk:
    return tiny("dream_tiny")


@pytest.fixture
def calm() -> Trunk:
    """A model that ends its texts."""
    return tiny("dream_calm_tiny")
