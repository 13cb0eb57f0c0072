"""Every recorded forward pass, padded batches and cached calls included."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.conformance import golden
from tests.conftest import golden_folders
from unmask.decoding.cache import BlockCache

TOLERANCE = 2e-4  # float32


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = golden_folders(metafunc.config)
    cached = "cached_case" in metafunc.fixturenames
    chosen = [case for case in golden.forwards(folders) if case.cached == cached]
    metafunc.parametrize("cached_case" if cached else "case", chosen, ids=partial(golden.label, folders))


def test_logits_equal_the_reference(case: golden.Forward) -> None:
    data, model = case.arrays, case.model
    if case.case.get("attention", "full") != "full":
        golden.fail(f"the harness cannot run the attention {case.case['attention']!r}")
    tokens = data["input_ids"]
    attend = data["attention_mask"].bool() if "attention_mask" in data else None
    logits = model(tokens, attend, slice(0, tokens.shape[1]), None)
    expected, valid = aligned(data, shifted=model.info.schedule == "dream")
    assert logits.isfinite().all()
    assert (logits - expected)[valid].abs().max() < TOLERANCE


def test_cached_logits_equal_the_reference(cached_case: golden.Forward) -> None:
    data, model = cached_case.arrays, cached_case.model
    if "x_refresh" not in data or "x_prefix" in data:
        golden.fail(f"the harness knows no cache that records {', '.join(sorted(data))}")
    start, stop = data["block"].tolist()
    # a dual cache answers for the block, a prefix cache for all that follows
    cache = BlockCache("block" if data["logits_call1"].shape[1] == stop - start else "suffix")
    cache.start_block(slice(start, stop))
    refreshed = model(data["x_refresh"], None, slice(0, data["x_refresh"].shape[1]), cache)
    assert (refreshed - data["logits_refresh"]).abs().max() < TOLERANCE
    for call in sorted(name for name in data if name.startswith("x_call")):
        expected = data[call.replace("x_", "logits_")]
        logits = model(data[call], None, slice(start, start + expected.shape[1]), cache)
        assert (logits - expected).abs().max() < TOLERANCE


def aligned(data: dict[str, Tensor], *, shifted: bool) -> tuple[Tensor, Tensor]:
    """Recorded logits per predicted column, and where to compare them; Dream's are recorded unshifted."""
    logits = data["logits"]
    valid = data.get("valid", data.get("attention_mask", torch.ones_like(data["input_ids"]))).bool()
    if not shifted:
        return logits, valid
    before = (torch.arange(logits.shape[1]) - 1).clamp(min=0)
    return logits[:, before], valid[:, before] & valid
