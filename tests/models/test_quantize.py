"""Quantized weights: small, close to the float ones, plain modules that can be saved."""

from __future__ import annotations

import json
import logging
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.conftest import GOLDENS
from tests.raises import raises_field
from unmask import blank, decode, make_sampler, plan
from unmask.bench.every_sampler import kinds
from unmask.models import load, random_checkpoint, save
from unmask.models.quantized import convert, int4, linear
from unmask.models.quantized.convert import FORMATS, quantize_model
from unmask.models.quantized.fp8 import FP8Linear
from unmask.models.quantized.int4 import Int4Linear, Int4PairLinear
from unmask.models.quantized.int8 import Int8Linear
from unmask.models.quantized.linear import QuantizedLinear
from unmask.models.trunk import Trunk

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

LAYERS = [FP8Linear, Int8Linear, Int4Linear]
# the error of random weights, as a part of their size
ERROR = {"fp8": 0.04, "int8": 0.01, "int4": 0.11}
FAMILIES = sorted({path.name for path in (GOLDENS / "families").glob("*_tiny")} - {"diffusion_gemma_tiny"})


def normal(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def filled(layer: type[QuantizedLinear], weight: Tensor, bias: bool = False) -> QuantizedLinear:
    made = layer(weight.shape[1], len(weight), bias=bias)
    made.weight, made.scale = layer.encode(weight)
    return made


def decoded(layer: QuantizedLinear) -> Tensor:
    return layer.decode(layer.weight, layer.scale, layer.inputs, torch.float32)


def same(left: Trunk, right: Trunk) -> bool:
    pairs = left.state_dict(), right.state_dict()
    return pairs[0].keys() == pairs[1].keys() and all(
        tensor.dtype == pairs[1][name].dtype
        and torch.equal(tensor.view(torch.uint8), pairs[1][name].view(torch.uint8))
        for name, tensor in pairs[0].items()
    )


def logits(model: Trunk, tokens: Tensor) -> Tensor:
    return model(tokens, None, slice(2, tokens.shape[1]), None)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("inputs", [64, 128, 200])
def test_a_weight_is_nearly_the_same_again(layer: type[QuantizedLinear], inputs: int) -> None:
    weight = normal(50, inputs) * torch.logspace(-3, 3, 50)[:, None]
    error = (decoded(filled(layer, weight)) - weight).norm(dim=1) / weight.norm(dim=1)
    assert error.max() < 1.3 * ERROR[layer.format]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_row_of_zeros_stays_zero(layer: type[QuantizedLinear]) -> None:
    narrow = filled(layer, torch.zeros(2, 128))
    assert narrow(torch.randn(3, 128)).eq(0).all()
    assert filled(layer, normal(16, 128))(torch.zeros(3, 128)).eq(0).all()


def test_no_int8_weight_moves_by_more_than_half_a_step() -> None:
    weight = normal(50, 64)
    layer = filled(Int8Linear, weight)
    assert ((decoded(layer) - weight).abs() <= layer.scale[:, None] / 2 + 1e-7).all()


@pytest.mark.parametrize("layer", LAYERS)
def test_a_product_is_near_that_of_the_weights(layer: type[QuantizedLinear]) -> None:
    weight, x = normal(48, 256), normal(2, 5, 256, seed=1)
    narrow = filled(layer, weight, bias=True)
    assert narrow.bias is not None
    narrow.bias.data = normal(48, seed=2)
    expected = x @ weight.T + narrow.bias
    assert ((narrow(x) - expected).norm() / expected.norm()) < 1.5 * ERROR[layer.format]


@pytest.mark.parametrize("layer", [pytest.param(FP8Linear, marks=pytest.mark.slow), Int8Linear])
def test_the_products_of_a_device_are_the_plain_ones(layer: type[QuantizedLinear]) -> None:
    narrow, x = filled(layer, normal(48, 256)).to(DEVICE), normal(20, 256, seed=1).bfloat16().to(DEVICE)
    plain, native = (
        layer.product(x, narrow.weight, narrow.scale, native=native).float() for native in (False, True)
    )
    torch.testing.assert_close(native, plain, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("rows", [1, 16, 17])
def test_whole_numbers_give_the_plain_product_for_any_number_of_rows(rows: int) -> None:
    narrow, x = filled(Int8Linear, normal(24, 64)), normal(rows, 64, seed=1)
    plain, native = (
        narrow.product(x, narrow.weight, narrow.scale, native=native) for native in (False, True)
    )
    torch.testing.assert_close(native, plain)


@pytest.mark.parametrize("layer", LAYERS)
def test_rows_do_not_depend_on_each_other(layer: type[QuantizedLinear]) -> None:
    narrow, x = filled(layer, normal(48, 128)), normal(3, 128, seed=1) * torch.tensor([[1e-3], [1.0], [1e3]])
    alone = torch.cat([narrow(row) for row in x.split(1)])
    torch.testing.assert_close(narrow(x), alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_wide_layer_is_computed_in_parts(
    layer: type[QuantizedLinear], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, x = filled(layer, normal(10, 128)), normal(2, 3, 128, seed=1)
    whole = narrow(x)
    monkeypatch.setattr(linear, "PART", 4)
    torch.testing.assert_close(narrow(x), whole)


@pytest.mark.parametrize("layer", LAYERS)
def test_changing_the_dtype_of_a_model_changes_no_weight(layer: type[QuantizedLinear]) -> None:
    narrow = filled(layer, normal(16, 128), bias=True)
    before = decoded(narrow)
    narrow.to(torch.bfloat16)
    assert torch.equal(decoded(narrow), before)
    assert narrow(normal(3, 128).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", FORMATS)
def test_logits_stay_near_the_float_ones(model: Trunk, dtype: str) -> None:
    narrow = load(model.folder, device="cpu", dtype=dtype)
    tokens = torch.randint(480, (4, 48), generator=torch.Generator().manual_seed(0))
    expected, found = (logits(each, tokens) for each in (model, narrow))
    assert (found - expected).std() / expected.std() < 8 * ERROR[dtype]
    sure = expected.softmax(-1).amax(-1) > 0.9
    if dtype == "int8":
        assert (found.argmax(-1) == expected.argmax(-1))[sure].float().mean() > 0.97


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_layer_is_quantized_and_norms_are_not(family: Trunk, dtype: str) -> None:
    narrow = load(family.folder, device="cpu", dtype=dtype)
    layers = [layer for layer in narrow.layers.modules() if isinstance(layer, QuantizedLinear)]
    assert len(layers) == 7 * family.shape.layers
    assert {layer.format for layer in layers} == {dtype}
    assert narrow.norm.weight.dtype == torch.float32
    assert not any(tensor.is_meta for tensor in narrow.state_dict().values())


@pytest.mark.parametrize("inputs", [64, 128, 200])
def test_a_pair_of_int4_weights_is_as_near_as_int8(inputs: int) -> None:
    weight, x = normal(48, inputs), normal(5, inputs, seed=1)
    pair = filled(Int4PairLinear, weight)
    assert (decoded(pair) - weight).norm() < 1.3 * ERROR["int8"] * weight.norm()
    torch.testing.assert_close(pair(x), x @ decoded(pair).T)


def test_the_last_two_layers_of_int4_lose_less(family: Trunk) -> None:
    narrow = load(family.folder, device="cpu", dtype="int4")
    errors = []
    for layer, plain in zip(narrow.layers, family.layers, strict=True):
        error, weight = decoded(layer.mlp.down) - plain.mlp.down.weight, plain.mlp.down.weight
        errors.append(error.norm() / weight.norm())
    assert max(errors[-2:]) < 0.02 < min(errors[:-2])


def test_int4_keeps_the_embedding_and_the_head_at_eight_bits(family: Trunk) -> None:
    narrow = load(family.folder, device="cpu", dtype="int4")
    assert {narrow.embed.weight.dtype, narrow.head.weight.dtype} == {torch.int8}
    tied = load(GOLDENS / "families" / "a2d_qwen3_tiny", device="cpu", dtype="int4")
    assert tied.head is None
    assert logits(tied, torch.arange(9)[None]).isfinite().all()


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_the_head_stays_plain_so_that_a_few_logits_can_be_computed_again(family: Trunk, dtype: str) -> None:
    assert load(family.folder, device="cpu", dtype=dtype).head_weight is not None


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_quantized_checkpoint_is_loaded_bit_for_bit(name: str, dtype: str, tmp_path: Path) -> None:
    narrow = load(GOLDENS / "families" / name, device="cpu", dtype=dtype)
    save(narrow, tmp_path, shard_bytes=100_000)
    again = load(tmp_path, device="cpu")
    assert same(narrow, again)
    assert again.config["quantization_config"] == narrow.config["quantization_config"]
    tokens = torch.arange(12)[None]
    assert torch.equal(logits(again, tokens), logits(narrow, tokens))
    assert same(load(tmp_path, device="cpu", dtype=dtype), again)


def test_a_checkpoint_of_one_format_is_not_loaded_as_another(tmp_path: Path) -> None:
    save(load(GOLDENS / "llada_tiny", device="cpu", dtype="int8"), tmp_path)
    with raises_field("dtype", "int4"):
        load(tmp_path, device="cpu", dtype="int4")
    with raises_field("dtype", "float32"):
        load(tmp_path, device="cpu", dtype="float32")


@pytest.mark.parametrize("field", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "unmask"}, "int8"])
def test_an_unknown_format_is_refused(tmp_path: Path, field: object) -> None:
    save(load(GOLDENS / "llada_tiny", device="cpu", dtype="int8"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": field}))
    with raises_field("quantization_config", field):
        load(tmp_path, device="cpu")


def test_int4_with_every_layer_at_four_bits_is_refused(tmp_path: Path) -> None:
    save(load(GOLDENS / "llada_tiny", device="cpu", dtype="int4"), tmp_path)
    path, field = tmp_path / "config.json", {"quant_method": "unmask", "format": "int4"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": field}))
    with raises_field("quantization_config", field):
        load(tmp_path, device="cpu")


def test_a_weight_of_another_format_is_named(tmp_path: Path) -> None:
    save(load(GOLDENS / "llada_tiny", device="cpu", dtype="int8"), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": {"quant_method": "unmask", "format": "fp8"}}))
    with pytest.raises(ValueError, match=r"of unknown dtype: .*\(I8\)"):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["llada2_tiny", "sdar_moe_tiny"])
def test_experts_are_quantized_and_routers_are_not(name: str, dtype: str) -> None:
    folder = GOLDENS / "families" / name
    narrow, model = load(folder, device="cpu", dtype=dtype), load(folder, device="cpu")
    state, plain = narrow.state_dict(), model.state_dict()
    kept = [key for key in state if ".router." in key]
    assert kept
    assert all(torch.equal(state[key], plain[key]) for key in kept)
    assert any(isinstance(layer, QuantizedLinear) for layer in narrow.layers[-1].mlp.experts.modules())
    assert same(quantize_model(model, dtype), narrow)


def test_fp8_says_that_it_is_slow_where_a_device_has_no_fp8(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(GOLDENS / "llada_tiny", device="cpu", dtype="fp8")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def place_of(tensor: Tensor) -> int:
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


class Allocated(TorchDispatchMode):
    """Adds up the bytes of all tensors that live, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {place_of(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                place = place_of(tensor)
                if place not in given and place not in self.live:  # no view, of a file for instance
                    self.live[place] = tensor.untyped_storage().nbytes()
                    weakref.finalize(tensor.untyped_storage(), self.live.pop, place, None)
        self.most = max(self.most, sum(self.live.values()))
        return out


@pytest.mark.parametrize("dtype", FORMATS)
def test_loading_takes_little_more_memory_than_the_weights(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((GOLDENS / "dream_tiny" / "config.json").read_text())
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1024}
    random_checkpoint(config | sizes, tmp_path, dtype=torch.float32)
    monkeypatch.setattr(convert, "WEIGHTS", 2048)  # this checkpoint is thousands of times smaller than others
    monkeypatch.setattr(int4, "REACHES", (1.0,))  # to be fast
    with Allocated() as allocated:
        model = load(tmp_path, device="cpu", dtype=dtype)
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert 0.9 * held < allocated.most < 1.15 * held


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_kind_of_sampler_runs_in_every_format(family: Trunk, dtype: str) -> None:
    model = load(family.folder, device="cpu", dtype=dtype)
    canvas = blank([[5, 6, 7]], 6, mask_id=model.info.mask_id, pad_id=model.info.pad_id)
    for name in kinds():
        result = decode(model, canvas, make_sampler(name), plan(canvas.start, 6, steps=6))
        assert not (result.generated == model.info.mask_id).any(), name
