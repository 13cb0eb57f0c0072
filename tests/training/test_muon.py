"""Muon: orthogonal updates of the promised size, batched by shape, equal to one matrix at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unmask.models.checkpoint.load import build
from unmask.training.muon import UPDATE_RMS, Muon, OptimizerSpec, orthogonalize, split

DREAM = {
    "model_type": "Dream",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "vocab_size": 32,
    "tie_word_embeddings": False,
    "mask_token_id": 1,
    "eos_token_id": 0,
}


def matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    g = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=g)) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=g)
    return made


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (20, 8)])
def test_orthogonalize_brings_all_singular_values_near_one_and_keeps_directions(shape):
    g = torch.Generator().manual_seed(1)
    matrix = torch.randn(3, *shape, generator=g)
    near = orthogonalize(matrix).float()
    values = torch.linalg.svdvals(near)
    assert values.min() > 0.4
    assert values.max() < 1.4
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    exact = left @ right
    assert (near * exact).sum() / (near.norm() * exact.norm()) > 0.97


def test_the_first_update_has_the_promised_size_whatever_the_gradient():
    for scale in (1e-4, 1.0, 1e4):
        [p] = matrices((32, 48))
        p.grad *= scale
        before = p.detach().clone()
        Muon([p], lr=0.1).step()
        rms = (p - before).square().mean().sqrt() / 0.1
        assert rms.item() == pytest.approx(UPDATE_RMS, rel=0.25)


def test_matrices_of_one_shape_are_updated_as_each_would_be_alone():
    shapes = [(8, 8), (12, 8), (8, 8), (8, 12)]
    together, alone = matrices(*shapes), matrices(*shapes)
    batched = Muon(together, lr=0.01, weight_decay=0.1)
    single = [Muon([p], lr=0.01, weight_decay=0.1) for p in alone]
    for _ in range(3):
        batched.step()
        for optimizer in single:
            optimizer.step()
    for p, q in zip(together, alone, strict=True):
        assert torch.allclose(p, q, atol=1e-4)


def test_momentum_is_nesterov():
    [p] = matrices((4, 4))
    first, second = torch.randn(4, 4), torch.randn(4, 4)
    optimizer = Muon([p], lr=0.0, momentum=0.9)
    for grad in (first, second):
        p.grad = grad
        optimizer.step()
    assert torch.allclose(optimizer.state[p]["momentum"], 0.9 * 0.1 * first + 0.1 * second, atol=1e-6)


def test_weight_decay_shrinks_before_the_update_and_missing_gradients_are_left_alone():
    p, q = matrices((4, 4), (4, 4))
    p.grad, q.grad = torch.zeros(4, 4), None
    before, untouched = p.detach().clone(), q.detach().clone()
    Muon([p, q], lr=0.1, weight_decay=0.5).step()
    assert torch.allclose(p, before * 0.95)
    assert q.equal(untouched)


def test_the_matrices_of_the_layers_go_to_muon_and_all_else_to_adamw():
    model = build(DREAM)
    muon, adam = OptimizerSpec(lr=0.1, adam_lr=0.2).build(model)
    inside, rest = split(model)
    assert len(inside) == 2 * 7
    assert {id(p) for p in muon.param_groups[0]["params"]} == {id(p) for p in inside}
    names = {name for name, p in model.named_parameters() if any(p is q for q in rest)}
    assert {"embed.weight", "head.weight", "norm.weight", "layers.0.attention.query.bias"} <= names
    assert (muon.param_groups[0]["base_lr"], adam.param_groups[0]["base_lr"]) == (0.1, 0.2)
    assert len(inside) + len(rest) == len(list(model.parameters()))


def test_adamw_alone_trains_everything():
    model = build(DREAM)
    [adam] = OptimizerSpec(name="adamw", lr=0.1, weight_decay=0.3).build(model)
    assert [group["weight_decay"] for group in adam.param_groups] == [0.3, 0.0]


def test_muon_refuses_vectors_and_specs_refuse_unknown_names():
    with pytest.raises(ValueError, match="matrices only"):
        Muon([nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(ValueError, match="name must be one of muon, adamw"):
        OptimizerSpec(name="sgd")
