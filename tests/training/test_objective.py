"""The loss against a plain computation."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.training.objective import LossWeights, diffusion_loss, loss_scale, token_losses


def plain_loss(logits, targets, masked, rate, region, weight) -> float:
    """Row by row, token by token."""
    total = 0.0
    for b in range(len(targets)):
        for i in range(len(targets[b])):
            if masked[b][i]:
                scores = logits[b][i]
                log_p = scores[targets[b][i]] - math.log(sum(math.exp(s) for s in scores))
                total -= log_p * weight[b][i] / rate[b]
    return total / sum(
        w for ws, rs in zip(weight, region, strict=True) for w, r in zip(ws, rs, strict=True) if r
    )


def case(seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 5, 7, generator=g)
    targets = torch.randint(0, 7, (3, 5), generator=g)
    region = torch.arange(5) >= torch.tensor([0, 2, 3])[:, None]
    masked = region & (torch.rand(3, 5, generator=g) < 0.6)
    return logits, targets, masked, torch.tensor([0.3, 0.9, 0.5]), region


def test_the_loss_is_the_plain_sum_over_masked_tokens_by_rate_and_weight():
    logits, targets, masked, rate, region = case()
    by_token = torch.linspace(0.5, 2, 7)
    weights = LossWeights(short_answer=4, short_answer_weight=3.0)
    weight = weights.of(targets, answers=torch.tensor([3, 4, 5]), by_token=by_token)
    assert weight[0].equal(3 * by_token[targets[0]])
    assert weight[1].equal(by_token[targets[1]])
    scale = loss_scale(masked, rate=rate, region=region, weight=weight)
    expected = plain_loss(*(t.tolist() for t in (logits, targets, masked, rate, region, weight)))
    assert diffusion_loss(logits, targets, scale).item() == pytest.approx(expected, rel=1e-5)


def test_prompts_and_visible_tokens_leave_no_gradient():
    logits, targets, masked, rate, region = case()
    logits.requires_grad_()
    weight = LossWeights().of(targets, answers=torch.full((3,), 5), by_token=None)
    scale = loss_scale(masked, rate=rate, region=region, weight=weight)
    diffusion_loss(logits, targets, scale).backward()
    assert (logits.grad.abs().sum(-1) > 0).equal(masked)


def test_every_token_of_the_region_counts_the_same_in_the_mean_whatever_the_rate():
    g = torch.Generator().manual_seed(0)
    rows = 40_000
    rate = torch.rand(rows, generator=g) * 0.9 + 0.1
    masked = torch.rand(rows, 4, generator=g) < rate[:, None]
    region = torch.ones(rows, 4, dtype=torch.bool)
    scale = loss_scale(masked, rate=rate, region=region, weight=torch.ones(rows, 4))
    assert (scale.sum(0) * 4).tolist() == pytest.approx([1.0] * 4, abs=0.04)


def test_losses_are_float32_for_bfloat16_logits():
    logits, targets, *_ = case()
    losses = token_losses(logits.bfloat16(), targets)
    assert losses.dtype == torch.float32
    assert losses.shape == targets.shape
    assert torch.allclose(losses, token_losses(logits, targets), atol=0.05)


def test_weights_refuse_negative_values():
    with pytest.raises(ValueError, match="tokens\\['A'\\] must be >= 0"):
        LossWeights(tokens={"A": -1.0})
