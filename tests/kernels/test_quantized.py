"""Products with narrow weights are those of the plain path. Without a GPU, Triton interprets the kernels."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from tests.conftest import GOLDENS  # noqa: E402
from unmask.fast import kernels  # noqa: E402
from unmask.fast.compile import use_split_products  # noqa: E402
from unmask.fast.kernels.tiles import CASES, Case, Tile  # noqa: E402
from unmask.fast.quantized import (  # noqa: E402
    multiply,
    partial_products,
    split_multiply,
    tile_for,
    use_quantized_products,
)
from unmask.models import random_model  # noqa: E402
from unmask.models.layers import Attention, SwiGLU  # noqa: E402
from unmask.models.quantized.convert import quantize_model  # noqa: E402
from unmask.models.quantized.fp8 import FP8Linear  # noqa: E402
from unmask.models.quantized.int4 import Int4Linear, Int4PairLinear  # noqa: E402
from unmask.models.quantized.int8 import Int8Linear  # noqa: E402
from unmask.models.quantized.linear import QuantizedLinear, quantized_layers  # noqa: E402

LAYERS = [FP8Linear, Int8Linear, Int4Linear, Int4PairLinear]
# the interpreter has no products of bfloat16
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def made(layer: type[QuantizedLinear], outputs: int = 256, inputs: int = 512) -> QuantizedLinear:
    generator = torch.Generator().manual_seed(0)
    narrow = layer(inputs, outputs)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    narrow.weight, narrow.scale = layer.encode(weight)
    narrow.has_kernel, narrow.native = True, False
    return narrow.to(DEVICE)


def rows(count: int, inputs: int = 512) -> Tensor:
    x = torch.randn(count, inputs, generator=torch.Generator().manual_seed(1))
    return (x * torch.linspace(0.1, 10, count)[:, None]).to(DEVICE, DTYPE)


def plain(layer: QuantizedLinear, x: Tensor) -> Tensor:
    return layer.product(x.float(), layer.weight, layer.scale, native=False)


def assert_parts_add_up(layer: QuantizedLinear, x: Tensor, splits: int) -> None:
    parts = partial_products(layer, x, splits=splits, dtype=torch.float32)
    assert parts.shape == (splits, len(x), 256)
    expected, slack = plain(layer, x), 0.0
    if isinstance(layer, FP8Linear) and DEVICE == "cuda":
        # tensor cores add up e4m3 with fewer bits than float32
        weight = layer.decode(layer.weight, layer.scale, 512, torch.float32)
        slack = 2**-12 * (x.float().abs() @ weight.abs().T)
    assert ((parts.sum(0) - expected).abs() <= 2e-3 + 1e-3 * expected.abs() + slack).all()


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(
    ("layer", "count"),
    [
        *product(LAYERS, [1, 20, 64, 65, 80]),
        (FP8Linear, 1000),
        (Int8Linear, 150),
        (Int8Linear, 1000),
        (Int4Linear, 150),
    ],
)
def test_the_parts_of_a_kernel_add_up_to_the_plain_product(layer, count, splits):
    narrow = made(layer)
    assert tile_for(narrow, count, split=False) is not None
    assert_parts_add_up(narrow, rows(count), splits)


@pytest.mark.parametrize("count", [20, 64, 70, 170])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_tile_with_extra_rows_multiplies_any_number_of_rows(monkeypatch, layer, count):
    narrow = made(layer)
    tile = Tile(64, 64, 128, 4, 3, extra=16)
    monkeypatch.setitem(CASES, narrow.weight.dtype, [Case(200, 4096, tile)])
    assert_parts_add_up(narrow, rows(count), splits=2)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_product_has_the_shape_and_dtype_of_its_input(layer):
    narrow, x = made(layer), rows(20).view(2, 10, 512)
    whole, parts = multiply(narrow, x), split_multiply(narrow, x)
    assert (whole.shape, whole.dtype) == ((2, 10, 256), DTYPE)
    assert (parts.shape, parts.dtype) == (
        (tile_for(narrow, 20, split=True).splits, 2, 10, 256),
        torch.float32,
    )
    torch.testing.assert_close(whole.float(), parts.sum(0), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("outputs", "inputs", "count"), [(96, 512, 8), (256, 448, 8)])
@pytest.mark.parametrize("layer", LAYERS)
def test_other_sizes_are_left_to_the_library(layer, outputs, inputs, count):
    narrow = made(layer, outputs, inputs)
    assert tile_for(narrow, count, split=True) is None
    x = rows(count, inputs)
    slack = 1e-2 if torch.float16 == DTYPE else 5e-2  # bfloat16 has three bits less
    torch.testing.assert_close(split_multiply(narrow, x).float(), plain(narrow, x), rtol=1e-2, atol=slack)


@pytest.mark.parametrize("dtype", ["fp8", "int8", "int4"])
def test_a_model_gives_the_same_logits_with_the_kernels(monkeypatch, dtype):
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = json.loads((GOLDENS / "dream_tiny" / "config.json").read_text()) | sizes
    model, fast = (quantize_model(random_model(config, device=DEVICE, dtype=DTYPE), dtype) for _ in range(2))
    for module in fast.modules():
        if isinstance(module, Attention | SwiGLU):
            module.join()
    for kind in CASES:
        tile = Tile(64, 16, 128 if kind == torch.uint8 else 64, 4, 2)
        monkeypatch.setitem(CASES, kind, [Case(64, 4096, tile)])
    monkeypatch.setattr(kernels, "multiplies_narrow", lambda weight, inputs: True)
    use_quantized_products(fast)
    use_split_products(fast)
    assert all(tile_for(layer, 40, split=True) for layer in quantized_layers(fast))
    tokens = torch.randint(5, 50, (2, 20), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    expected, answer = (each(tokens, None, slice(4, 20), None).float() for each in (model, fast))
    assert (answer - expected).std() < 0.05 * expected.std()
