"""Every recorded forward pass, padded batches and cached calls included."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.conformance import golden
from tests.conftest import golden_folders
from unmask.decoding.cache import BlockCache
from unmask.models.trunk import Trunk
from unmask.types import BlockGrid

TOLERANCE = 2e-4  # float32


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = golden_folders(metafunc.config)
    cached = "cached_case" in metafunc.fixturenames
    chosen = [case for case in golden.forwards(folders) if case.cached == cached]
    metafunc.parametrize("cached_case" if cached else "case", chosen, ids=partial(golden.label, folders))


def test_logits_equal_the_reference(case: golden.Forward, monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = case.arrays, model_of(case, monkeypatch)
    tokens = data["input_ids"]
    attend = data["attention_mask"].bool() if "attention_mask" in data else None
    logits = model(tokens, attend, slice(0, tokens.shape[1]), None)
    expected, valid = aligned(data, shifted=model.predicting(slice(1, 2)).start == 0)
    assert logits.isfinite().all()
    assert (logits - expected)[valid].abs().max() < TOLERANCE


def test_cached_logits_equal_the_reference(
    cached_case: golden.Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = cached_case.arrays, model_of(cached_case, monkeypatch)
    if "x_prefix" in data:
        return check_kept_prefix(data, model)
    if "x_refresh" not in data:
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


def check_kept_prefix(data: dict[str, Tensor], model: Trunk) -> None:
    """Run a block, or a part of it, on the keys and values of the columns before."""
    cache = KeptColumns()
    parts = {"x_prefix": slice(0, data["x_prefix"].shape[1]), "x_refresh": slice(*data["block"].tolist())}
    call = slice(*data.get("sub_block", data["block"]).tolist())
    calls = sorted(name for name in data if name.startswith("x_call"))
    for name in (*(name for name in parts if name in data), *calls):
        columns = parts.get(name, call)
        logits = model.logits(model.states(data[name], None, columns, cache))
        expected = data.get(name.replace("x_", "logits_"))
        if expected is not None:  # the prefix of a sub-block has none
            assert (logits - expected).abs().max() < TOLERANCE


class KeptColumns:
    """A cache that runs only the columns asked for and keeps the keys and values of all others."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}

    def start_block(self, block: slice) -> None: ...

    def columns(self, need: slice, n: int) -> slice:
        return need

    def update(self, layer: int, columns: slice, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept = self.stored.get(layer, (k[:, :, :0], v[:, :, :0]))
        fresh = zip(kept, (k, v), strict=True)
        keys, values = (
            torch.cat([old[:, :, : columns.start], new, old[:, :, columns.stop :]], dim=2)
            for old, new in fresh
        )
        self.stored[layer] = keys, values
        return keys, values

    def ran(self, columns: slice) -> None: ...


def model_of(case: golden.Forward, monkeypatch: pytest.MonkeyPatch) -> Trunk:
    """The model of a case, with the attention that the case recorded."""
    if golden.architecture(case.checkpoint).startswith("DiffusionGemma"):
        pytest.skip("DiffusionGemma has no mask token, and unmask does not load it")
    model = case.model
    assert isinstance(model, Trunk)
    kind = case.case.get("attention", "full")
    if kind not in ("full", "block_causal"):
        golden.fail(f"the harness cannot run the attention {kind!r}")
    grid = None
    if kind == "block_causal":
        origin = "canvas" if model.info.grid is None else model.info.grid.origin
        grid = BlockGrid(length=case.case["block_length"], origin=origin)
    monkeypatch.setattr(model, "info", replace(model.info, grid=grid))
    return model


def aligned(data: dict[str, Tensor], *, shifted: bool) -> tuple[Tensor, Tensor]:
    """Recorded logits per predicted column, and where to compare them; Dream's are recorded unshifted."""
    logits = data["logits"]
    valid = data.get("valid", data.get("attention_mask", torch.ones_like(data["input_ids"]))).bool()
    if not shifted:
        return logits, valid
    before = (torch.arange(logits.shape[1]) - 1).clamp(min=0)
    return logits[:, before], valid[:, before] & valid
