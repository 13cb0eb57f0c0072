"""The whole benchmarks: in the folder that UNMASK_DATA names, or in shared/data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[4] / "shared" / "data"
NAMED = Path(os.environ.get("UNMASK_DATA", BESIDE))  # read before a test hides the variable


@pytest.fixture(scope="session")
def whole_sets() -> Path:
    if not (NAMED / "gsm8k").is_dir():
        pytest.skip("no whole benchmarks: set UNMASK_DATA to a folder with gsm8k/test.jsonl and so on")
    return NAMED
