"""int8 weights: small, close to the float ones, and plain modules."""

from __future__ import annotations

import pytest
import torch

from unmask.models import load
from unmask.models.checkpoint import quantize as module
from unmask.models.checkpoint.quantize import Int8Linear, quantize
from unmask.models.trunk import Trunk


def test_no_weight_moves_by_more_than_half_a_step() -> None:
    weight = torch.randn(50, 64)
    rounded, scale = quantize(weight)
    assert rounded.dtype == torch.int8
    assert ((rounded * scale[:, None] - weight).abs() <= scale[:, None] / 2 + 1e-7).all()


def test_a_row_of_zeros_stays_zero() -> None:
    rounded, scale = quantize(torch.zeros(2, 8))
    assert rounded.eq(0).all()
    assert scale.isfinite().all()


def test_a_wide_layer_is_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Int8Linear(16, 10, bias=True)
    layer.weight, layer.scale = quantize(torch.randn(10, 16))
    x = torch.randn(2, 3, 16)
    whole = layer(x)
    monkeypatch.setattr(module, "ROWS", 4)
    torch.testing.assert_close(layer(x), whole)
    parts = quantize(layer.weight.float())
    monkeypatch.undo()
    assert all(map(torch.equal, parts, quantize(layer.weight.float())))


def test_int8_logits_stay_near_the_float_ones(model: Trunk) -> None:
    narrow = load(model.folder, device="cpu", dtype="int8")
    half = load(model.folder, device="cpu", dtype="bfloat16")
    tokens = torch.randint(480, (4, 48), generator=torch.Generator().manual_seed(0))
    expected, logits, rounded = (m(tokens, None, slice(0, 48), None).float() for m in (model, narrow, half))
    assert (logits - expected).std() < 3 * (rounded - expected).std()
    sure = expected.softmax(-1).amax(-1) > 0.5
    assert (logits.argmax(-1) == expected.argmax(-1))[sure].float().mean() > 0.97


def test_every_linear_layer_takes_one_byte_per_weight(family: Trunk) -> None:
    narrow = load(family.folder, device="cpu", dtype="int8")
    layers = [layer for layer in narrow.modules() if isinstance(layer, Int8Linear)]
    assert len(layers) == 7 * family.shape.layers + 1
    assert not any(isinstance(layer, torch.nn.Linear) for layer in narrow.modules())
    assert {layer.weight.dtype for layer in layers} == {torch.int8}
    assert not any(tensor.is_meta for tensor in narrow.state_dict().values())


def test_an_int8_model_can_compute_in_bfloat16(family: Trunk) -> None:
    narrow = load(family.folder, device="cpu", dtype=torch.int8).to(torch.bfloat16)
    logits = narrow(torch.arange(9)[None], None, slice(0, 9), None)
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
