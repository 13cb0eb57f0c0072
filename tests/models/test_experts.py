"""Experts: both products agree, and a mixture is the weighted sum of its experts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unmask.models import experts
from unmask.models.experts import ExpertShape, Mixture, Router, grouped_product, looped_product

SHAPE = ExpertShape(router="softmax", experts=6, chosen=2, size=8, shared_size=4)


def one_by_one(mixture: Mixture, x: torch.Tensor) -> torch.Tensor:
    """The mixture computed token by token."""
    rows = []
    for token, weights, chosen in zip(x, *mixture.router(x), strict=True):
        total = torch.zeros_like(token) if mixture.shared is None else mixture.shared(token)
        for weight, expert in zip(weights, chosen, strict=True):
            gate, up = (mixture.experts.gate_up[expert] @ token).chunk(2)
            total = total + weight * (mixture.experts.down[expert] @ (F.silu(gate) * up))
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_a_mixture_is_the_weighted_sum_of_its_experts(tokens: int) -> None:
    mixture = Mixture(16, SHAPE)
    x = torch.randn(tokens, 16)
    torch.testing.assert_close(mixture(x[None])[0], one_by_one(mixture, x))


def test_rows_do_not_depend_on_each_other() -> None:
    mixture, x = Mixture(16, SHAPE), torch.randn(3, 5, 16)
    torch.testing.assert_close(mixture(x)[1], mixture(x[1:2])[0])


@pytest.mark.skipif(experts.GROUPED is None, reason="this torch has no grouped product")
def test_the_grouped_product_is_the_looped_one() -> None:
    x, weight = torch.randn(9, 16), torch.randn(4, 24, 16)
    ends = torch.tensor([2, 2, 7, 9], dtype=torch.int32)  # the second expert has no rows
    x, weight = x.bfloat16(), weight.bfloat16()
    torch.testing.assert_close(grouped_product(weight, x, ends), looped_product(weight, x, ends))


@pytest.mark.skipif(experts.GROUPED is None, reason="this torch has no grouped product")
def test_a_mixture_on_grouped_products_is_the_looped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture, x = Mixture(16, SHAPE).bfloat16(), torch.randn(2, 7, 16).bfloat16()
    expected = mixture(x)
    monkeypatch.setattr(experts, "can_group", lambda x, weight: True)
    torch.testing.assert_close(mixture(x), expected)


@pytest.mark.slow
@pytest.mark.skipif(experts.GROUPED is None, reason="this torch has no grouped product")
def test_a_mixture_on_grouped_products_compiles_in_one_piece() -> None:
    mixture, x = Mixture(16, SHAPE).bfloat16().requires_grad_(False), torch.randn(2, 7, 16).bfloat16()
    mixture.experts.grouped = True
    expected = mixture(x)
    compiled = torch.compile(mixture, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(x), expected)


def test_weights_of_qwens_router_add_up_to_one_and_those_of_llada_moe_do_not() -> None:
    x = torch.randn(5, 16)
    plain = Router(16, SHAPE)
    renormalised = Router(16, ExpertShape(router="renormalised", experts=6, chosen=2, size=8))
    renormalised.load_state_dict(plain.state_dict())
    assert (plain(x)[0].sum(-1) < 1).all()
    torch.testing.assert_close(renormalised(x)[0].sum(-1), torch.ones(5))
    assert torch.equal(plain(x)[1], renormalised(x)[1])


def test_llada2s_bias_chooses_experts_but_does_not_weigh_them() -> None:
    shape = ExpertShape(
        router="grouped", experts=8, chosen=2, size=8, bias=True, groups=4, kept_groups=2, scale=2.5
    )
    router, x = Router(16, shape), torch.randn(5, 16)
    router.expert_bias.data[[2, 5]] = 10.0
    weights, chosen = router(x)
    assert {frozenset(row) for row in chosen.tolist()} == {frozenset((2, 5))}
    score = F.linear(x, router.weight).sigmoid().gather(1, chosen)
    torch.testing.assert_close(weights, 2.5 * score / score.sum(-1, keepdim=True))


def test_llada2_chooses_inside_the_best_groups_only() -> None:
    shape = ExpertShape(
        router="grouped", experts=4, chosen=2, size=8, bias=True, groups=2, kept_groups=1, scale=1.0
    )
    router = Router(16, shape)
    router.expert_bias.data = torch.tensor([0.0, 9.0, 8.0, 7.0])  # the best expert is in the weaker group
    assert set(router(torch.randn(1, 16))[1][0].tolist()) == {2, 3}
