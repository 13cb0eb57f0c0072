"""Fixtures of the model tests."""

from __future__ import annotations

from functools import cache

import pytest

from unmask.models import load
from unmask.models.trunk import Trunk

from .goldens import CHECKPOINTS, GOLDENS

tiny = cache(lambda name: load(GOLDENS / name, device="cpu"))


@pytest.fixture(params=CHECKPOINTS)
def model(request: pytest.FixtureRequest) -> Trunk:
    loaded: Trunk = tiny(request.param)
    return loaded


@pytest.fixture(params=("llada_tiny", "dream_tiny"))
def family(request: pytest.FixtureRequest) -> Trunk:
    loaded: Trunk = tiny(request.param)
    return loaded
