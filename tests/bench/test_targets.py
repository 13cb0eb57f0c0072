"""`unmask bench gpu --dtypes` in miniature: a step of every dtype stands beside its floor."""

from __future__ import annotations

import json

import pytest
import torch

from unmask.bench.gpu import GpuSettings
from unmask.bench.step import Sizes, full_size
from unmask.bench.targets import SPEED, floor_ms, run_targets
from unmask.models.quantized.convert import quantize_model

SETTINGS = {"families": ["llada"], "ways": ["recorded"], "batches": [1], "small": True}


@pytest.mark.slow
def test_every_dtype_has_a_step_a_floor_and_an_agreement(tmp_path):
    settings = GpuSettings(**SETTINGS, caches=["none", "dual"])
    content = run_targets(settings, list(SPEED), out=tmp_path, log=lambda _: None)
    assert content["problems"] == []
    found = content["families"]["llada"]
    for dtype in SPEED:
        for cache in ("none", "dual"):
            one = found[dtype][f"b1_{cache}"]
            assert one["ratio"] == pytest.approx(one["step_ms"] / one["floor_ms"])
    assert found["bf16"]["agreement"] == {"top1": 1.0, "kl": 0.0}
    sizes = [found[dtype]["weight_bytes"] for dtype in ("int4", "fp8", "bf16")]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3
    assert json.loads((tmp_path / "targets.json").read_text()) == content


@pytest.mark.slow
def test_a_second_command_adds_to_the_file(tmp_path):
    settings = GpuSettings(**SETTINGS, caches=["none"])
    first = run_targets(settings, ["bf16"], out=tmp_path, log=lambda _: None)
    second = run_targets(settings, ["bf16", "int8"], out=tmp_path, log=lambda _: None)
    assert second["families"]["llada"]["bf16"]["b1_none"] == first["families"]["llada"]["bf16"]["b1_none"]
    assert "b1_none" in second["families"]["llada"]["int8"]


def test_the_floor_is_the_larger_of_bytes_and_arithmetic():
    model = full_size("llada", torch.device("cpu"), small=True)
    sizes = Sizes()
    few, many = (floor_ms(model, sizes, "bf16", batch, "dual") for batch in (1, 10_000))
    assert few < many
    narrow = quantize_model(full_size("llada", torch.device("cpu"), small=True), "fp8")
    assert floor_ms(narrow, sizes, "fp8", 1, "dual") < few  # fewer bytes
    assert many / 2 < floor_ms(narrow, sizes, "fp8", 10_000, "dual") < many  # faster products


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match="dtypes must be some of bf16, fp8, int8, int4; got int2"):
        run_targets(GpuSettings(**SETTINGS), ["int2"])
