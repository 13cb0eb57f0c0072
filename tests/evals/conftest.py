"""Tiny models, and a task whose verdicts differ from text to text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from unmask import GenerationConfig
from unmask.evals import Sample, Task, Verdict
from unmask.models import load
from unmask.models.trunk import Trunk

SHORT = GenerationConfig(max_new_tokens=8)


def parity(samples: Sequence[Sample], texts: Sequence[str]) -> list[Verdict]:
    """A text is right if its length plus the sample's number is even."""
    even = [(len(text) + sample.gold) % 2 == 0 for sample, text in zip(samples, texts, strict=True)]
    return [
        Verdict(right, text[:3] or None, {"odd": not right}) for right, text in zip(even, texts, strict=True)
    ]


def ask(folder: Path | None) -> list[Sample]:
    return [Sample(f"q/{n}", "word " * (1 + n % 4) + str(n), n) for n in range(14)]


PARITY = Task(name="parity", protocol="test", version=1, load=ask, score=parity, max_new_tokens=8)


@pytest.fixture
def task() -> Task:
    return PARITY


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("evals") / "llada", "llada_tiny")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Trunk:
    return load(checkpoint, device="cpu")
