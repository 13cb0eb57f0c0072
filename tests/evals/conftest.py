"""Tiny models, and a task whose verdicts differ from text to text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint
from unmask import GenerationConfig
from unmask.evals import Sample, Task, Verdict, manifest
from unmask.models import load
from unmask.models.trunk import Trunk
from unmask.sandbox import Isolation, bubblewrap, run
from unmask.sandbox.isolation import UNSAFE

WEAK = Isolation(layers=("rlimits",), denied=(), allowed=("network",))
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


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose kernel denies nothing."""
    monkeypatch.setenv(UNSAFE, "")  # restores the variable that --unsafe-code sets
    monkeypatch.setattr(bubblewrap, "wrap", lambda *given: None)
    monkeypatch.setattr(run._Helper, "probe", lambda helper: WEAK)
    manifest._isolation.cache_clear()
    yield
    manifest._isolation.cache_clear()
