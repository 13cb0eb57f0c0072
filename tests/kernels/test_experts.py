"""Mixtures of experts are those of the plain path. Without a GPU, Triton interprets the kernels."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")

from tests.conftest import GOLDENS  # noqa: E402
from unmask.fast import experts as fast_experts  # noqa: E402
from unmask.fast import kernels  # noqa: E402
from unmask.fast.experts import run_experts, sort_pairs, tiles_for, use_expert_kernels  # noqa: E402
from unmask.fast.kernels.tiles import EXPERT_TILES, ExpertTiles, Tile, count_slots  # noqa: E402
from unmask.models import random_model  # noqa: E402
from unmask.models.experts import Experts, ExpertShape  # noqa: E402
from unmask.models.quantized.convert import FORMATS, quantize_model  # noqa: E402
from unmask.models.quantized.experts import QuantizedExperts  # noqa: E402
from unmask.models.quantized.int4 import Int4PairLinear  # noqa: E402

# the interpreter has no products of bfloat16
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16
COUNT, SIZE, WIDTH = 9, 128, 128  # experts, their inputs and their hidden width
WEIGHTS = ["wide", "fp8", "int8", "int4", "pairs of int4"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of the tests' sizes; an average expert of more than 4 rows takes larger ones."""
    few = ExpertTiles(Tile(16, 64, 32, 4, 2), Tile(16, 64, 64, 4, 2, copies=True))
    many = ExpertTiles(Tile(32, 64, 64, 4, 2, copies=True), Tile(32, 64, 32, 4, 2))
    packed = ExpertTiles(Tile(16, 64, 128, 4, 2), Tile(16, 64, 128, 4, 2))
    monkeypatch.setitem(EXPERT_TILES, torch.uint8, {1 << 20: packed})
    for dtype in (DTYPE, torch.float8_e4m3fn, torch.int8):
        monkeypatch.setitem(EXPERT_TILES, dtype, {4: few, 1 << 20: many})


def made(weights: str, width: int = WIDTH) -> Experts | QuantizedExperts:
    generator = torch.Generator().manual_seed(0)
    shape = ExpertShape(router="softmax", experts=COUNT, chosen=8, size=width)
    experts = Experts(SIZE, shape).requires_grad_(False)
    for stack in (experts.gate_up, experts.down):
        stack.copy_(torch.randn(stack.shape, generator=generator) / stack.shape[2] ** 0.5)
    if weights == "wide":
        return experts.to(DEVICE, DTYPE)
    layer = Int4PairLinear if weights == "pairs of int4" else FORMATS[weights].layer
    narrow = QuantizedExperts(experts, layer)
    for name in ("gate_up", "down"):
        of = getattr(narrow, name)
        of.weight, of.scale = layer.encode(getattr(experts, name).flatten(0, 1))
    return narrow.to(DEVICE)


def routes(tokens: int, chosen: int, kind: str) -> Tensor:
    """Choose the experts of tokens: at random, the same for all tokens, or never the first."""
    if kind == "same":
        return torch.arange(chosen).flip(0).expand(tokens, -1).to(DEVICE)
    noise = torch.rand(tokens, COUNT, generator=torch.Generator().manual_seed(tokens))
    if kind == "not the first":
        noise[:, 0] = -1.0
    return noise.topk(chosen).indices.to(DEVICE)


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("kind", ["random", "same", "not the first"])
@pytest.mark.parametrize(("tokens", "chosen"), [(1, 1), (1, 8), (33, 1), (64, 2), (23, 8), (700, 8)])
def test_slots_hold_every_pair_once_in_order_and_never_two_experts(tokens, chosen, kind, rows):
    numbers = routes(tokens, chosen, kind)
    pairs, of_slot = (each.cpu() for each in sort_pairs(numbers, COUNT, rows))
    assert pairs.shape == (count_slots(numbers.numel(), COUNT, rows), rows)
    is_pair = pairs >= 0
    assert pairs[is_pair].tolist() == numbers.flatten().sort(stable=True).indices.tolist()
    assert (is_pair.any(1) == (of_slot >= 0)).all()
    experts = numbers.flatten().cpu()[pairs[is_pair]]
    assert torch.equal(experts, of_slot[:, None].expand_as(pairs)[is_pair].long())
    assert (is_pair[:, :-1] >= is_pair[:, 1:]).all()  # a slot is filled from its first row on


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    ("tokens", "chosen", "kind"),
    [
        (1, 1, "same"),
        (1, 8, "random"),
        (40, 1, "same"),
        (37, 1, "not the first"),
        (21, 8, "random"),
        (19, 2, "same"),
    ],
)
def test_a_mixture_is_that_of_the_plain_path(weights, tokens, chosen, kind):
    experts, numbers = made(weights), routes(tokens, chosen, kind)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, SIZE, generator=generator).to(DEVICE, DTYPE)
    route = torch.rand(tokens, chosen, generator=generator).to(DEVICE), numbers
    expected, mixed = experts.run(x, route), run_experts(experts, x, route)
    assert (mixed.shape, mixed.dtype) == ((tokens, SIZE), torch.float32)
    if DEVICE == "cuda" and weights != "wide":  # the plain path rounds the hidden values to bfloat16 first
        assert (mixed - expected).norm() < 0.03 * expected.norm()
        return
    torch.testing.assert_close(mixed, expected, rtol=2e-2, atol=(2e-2 if weights == "wide" else 6e-2))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_row_does_not_depend_on_the_other_rows(weights):
    experts, numbers = made(weights), routes(12, 2, "random")
    x, weight = torch.randn(12, SIZE).to(DEVICE, DTYPE), torch.rand(12, 2).to(DEVICE)
    whole = run_experts(experts, x, (weight, numbers))
    order = torch.randperm(12, device=DEVICE)
    assert torch.equal(run_experts(experts, x[order], (weight[order], numbers[order])), whole[order])


def test_other_sizes_are_left_to_the_library():
    experts = made("wide", width=48)
    assert tiles_for(experts.gate_up, experts.down, 4) is None
    x, route = torch.randn(2, SIZE).to(DEVICE, DTYPE), (torch.rand(2, 2).to(DEVICE), routes(2, 2, "random"))
    assert torch.equal(run_experts(experts, x, route), experts.run(x, route))


@pytest.mark.skipif(DEVICE == "cpu" or torch.cuda.get_device_capability() < (9, 0), reason="needs a Hopper")
def test_the_environment_turns_the_kernels_off(monkeypatch):
    experts = made("wide")
    monkeypatch.setenv(kernels.SWITCH, "0")
    use_expert_kernels(experts, DTYPE)
    assert experts.run_fn is Experts.run
    monkeypatch.delenv(kernels.SWITCH)
    use_expert_kernels(experts, DTYPE)
    assert experts.run_fn is run_experts


@pytest.mark.parametrize("weights", ["wide", "fp8"])
def test_a_mixture_compiles_in_one_piece(weights):
    experts, x = made(weights), torch.randn(5, SIZE).to(DEVICE, DTYPE)
    route = torch.rand(5, 2).to(DEVICE), routes(5, 2, "random")
    compiled = torch.compile(run_experts, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(experts, x, route), run_experts(experts, x, route))


@pytest.mark.parametrize("dtype", [None, "fp8", "int8", "int4"])
def test_a_model_gives_the_same_logits_with_the_kernels(monkeypatch, dtype):
    config = json.loads((GOLDENS / "families" / "llada_moe_mixed_tiny" / "config.json").read_text())
    config |= {"hidden_size": 128, "expert_intermediate_size": 128, "mask_token_id": 3}
    model, fast = (random_model(config, device=DEVICE, dtype=DTYPE) for _ in range(2))
    if dtype is not None:
        model, fast = (quantize_model(each, dtype) for each in (model, fast))
    monkeypatch.setattr(kernels, "multiplies_narrow", lambda weight, inputs: True)
    use_expert_kernels(fast, DTYPE)
    calls = []
    product = fast_experts.expert_product
    monkeypatch.setattr(fast_experts, "expert_product", lambda *given: calls.append(1) or product(*given))
    tokens = torch.randint(5, 50, (2, 20), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    expected, answer = (each(tokens, None, slice(4, 20), None).float() for each in (model, fast))
    assert calls
    assert (answer - expected).std() < 0.05 * expected.std()
