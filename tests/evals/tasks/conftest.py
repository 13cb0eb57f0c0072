"""The benchmarks' files: the folder that UNMASK_DATA names, or shared/data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="session")
def folder() -> Path:
    path = Path(os.environ.get("UNMASK_DATA", BESIDE))
    if not (path / "gsm8k").is_dir():
        pytest.skip("no benchmark files: set UNMASK_DATA to a folder with gsm8k/test.jsonl and so on")
    return path
