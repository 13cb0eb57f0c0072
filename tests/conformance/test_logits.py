"""Every recorded forward pass, padded batches and cached calls included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conformance import golden
from unmask.decoding.cache import BlockCache

TOLERANCE = 2e-4  # float32


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = Path(metafunc.config.getoption("--goldens"))
    cases = golden.forwards(folder)
    cached = "cached_case" in metafunc.fixturenames
    chosen = [case for case in cases if ("x_refresh" in case["arrays"]) == cached]
    metafunc.parametrize("cached_case" if cached else "case", chosen, ids=lambda case: case["case"])


def test_logits_equal_the_reference(case: dict[str, Any]) -> None:
    data, model = golden.forward_arrays(case), golden.checkpoint(case["folder"] / case["checkpoint"])
    attend = data["attention_mask"].bool() if "attention_mask" in data else None
    logits = model(data["input_ids"], attend, slice(0, data["input_ids"].shape[1]), None)
    expected, valid = aligned(data, shifted=model.info.schedule == "dream")
    assert logits.isfinite().all()
    assert (logits - expected)[valid].abs().max() < TOLERANCE


def test_cached_logits_equal_the_reference(cached_case: dict[str, Any]) -> None:
    data = golden.forward_arrays(cached_case)
    model = golden.checkpoint(cached_case["folder"] / cached_case["checkpoint"])
    start, stop = data["block"].tolist()
    # a dual cache answers for the block, a prefix cache for all that follows
    cache = BlockCache("block" if data["logits_call1"].shape[1] == stop - start else "suffix")
    cache.start_block(slice(start, stop))
    refreshed = model(data["x_refresh"], None, slice(0, data["x_refresh"].shape[1]), cache)
    assert (refreshed - data["logits_refresh"]).abs().max() < TOLERANCE
    for call in ("call1", "call2"):
        expected = data[f"logits_{call}"]
        logits = model(data[f"x_{call}"], None, slice(start, start + expected.shape[1]), cache)
        assert (logits - expected).abs().max() < TOLERANCE


def aligned(data: dict[str, Tensor], *, shifted: bool) -> tuple[Tensor, Tensor]:
    """Recorded logits per predicted column, and where to compare them; Dream's are recorded unshifted."""
    logits, valid = data["logits"], data["valid"].bool()
    if not shifted:
        return logits, valid
    before = (torch.arange(logits.shape[1]) - 1).clamp(min=0)
    return logits[:, before], valid[:, before] & valid
