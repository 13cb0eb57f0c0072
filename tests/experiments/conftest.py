"""A lab with a tiny model and few samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoints import write_checkpoint
from unmask.evals.records import Record
from unmask.experiments.lab import Lab, LabSettings
from unmask.experiments.runs import Outcome

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("experiments") / "llada", "llada_tiny")


@pytest.fixture
def make_lab(checkpoint: Path, tmp_path: Path) -> Callable[..., Lab]:
    """Labs that share a folder of records."""

    def make(**changes: object) -> Lab:
        settings = {
            "models": (str(checkpoint),),
            "out": tmp_path / "out",
            "tasks": ("mini-gsm8k", "mini-humaneval"),
            "limit": 4,  # two of each task
            "device": "cpu",
            "batch_size": 2,
            **changes,
        }
        return Lab(LabSettings(**settings))

    return make


def outcome(rights: list[bool], steps: int = 10) -> Outcome:
    """A run with these verdicts."""
    records = tuple(
        Record(
            id=f"q/{place}",
            prompt="",
            text="",
            extracted=None,
            correct=right,
            also={},
            steps=steps,
            forwards=steps,
            forced_share=0.0,
            leftovers=0,
            tokens=1,
            prompt_tokens=1,
            finish="eos",
        )
        for place, right in enumerate(rights)
    )
    return Outcome(records=records, timings=(), configuration={"decoding": {"steps": 128}}, environment={})
