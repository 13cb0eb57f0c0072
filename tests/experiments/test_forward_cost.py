from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unmask.experiments.forward_cost import forward_flops, model_shape
from unmask.models import load
from unmask.models.trunk import Shape


@pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
@pytest.mark.parametrize("columns", [40, 170])
def test_the_papers_count_is_that_of_torch(name, columns):
    model = load(name, device="cpu")
    tokens = torch.randint(0, 1000, (1, columns))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(tokens, None, slice(0, columns), None)
    assert forward_flops(model_shape(name), columns) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_fewer_predicted_columns_cost_only_less_head():
    shape = model_shape("mini-llada")
    saved = forward_flops(shape, 100) - forward_flops(shape, 100, head_columns=40)
    assert saved == 2 * shape.size * shape.vocab_size * 60


def test_attention_is_at_most_five_percent_of_dream_7b_as_the_paper_says():
    shape = Shape(
        vocab_size=152064,
        size=3584,
        layers=28,
        heads=28,
        key_heads=4,
        head_size=128,
        mlp_size=18944,
        norm_eps=1e-6,
        rope_theta=1e6,
        qkv_bias=True,
        tied=False,
    )
    attention = shape.layers * 4 * 3584 * 512**2
    assert attention / forward_flops(shape, 512) < 0.05
