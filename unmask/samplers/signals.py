"""Stability signals: pure functions of predictions, [B, W] each, before temperature and filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unmask.decoding.summary import by_rows
from unmask.types import Observation, Prediction

LN2 = math.log(2)
KL_FLOOR = 1e-12  # KLASS adds it inside both logarithms


def confidence(prediction: Prediction) -> Tensor:
    """Return the probability of the top-1 token (LESS Eq. conf)."""
    return (prediction.top_logits[..., 0] - prediction.lse).exp()


def probability(prediction: Prediction, tokens: Tensor) -> Tensor:
    """Return the probability of the given tokens [B, W]."""
    return (prediction.full_logits.gather(-1, tokens[..., None])[..., 0] - prediction.lse).exp()


def margin(prediction: Prediction) -> Tensor:
    """Return the probability of the top-1 token minus that of the top-2 token."""
    top = prediction.top_probs
    return top[..., 0] - top[..., 1]


def logit_margin(prediction: Prediction) -> Tensor:
    """Return the logit of the top-1 token minus that of the top-2 token (Prophet's gap)."""
    return prediction.top_logits[..., 0] - prediction.top_logits[..., 1]


def entropy(prediction: Prediction) -> Tensor:
    """Return the entropy over the whole vocabulary, in nats."""
    return by_rows(_entropy, prediction.full_logits)


def persistence(obs: Observation, length: int) -> Tensor:
    """Return whether the top-1 token was the same in the last `length` observations (LESS Eq. persist).

    This observation counts as one. The result is False with too little history.
    """
    steady = (obs.seen >= length - 1)[:, None].expand_as(obs.active)
    for before in obs.past[: length - 1]:
        steady = steady & (before.top1 == obs.now.top1)
    return steady


def topk_jsd(obs: Observation, *, top_k: int, exact: bool) -> Tensor:
    """Return the Jensen-Shannon divergence of this step from the last; +inf at the first observation."""
    if not obs.past:
        return torch.full_like(obs.now.lse, torch.inf)
    divergence = jsd(obs.now.top(top_k), obs.past[0].top(top_k), exact=exact)
    return divergence.masked_fill((obs.seen < 1)[:, None], torch.inf)


def kl_step(obs: Observation) -> Tensor:
    """Return KL(now || last step) over the whole vocabulary; +inf at the first observation."""
    if not obs.past:
        return torch.full_like(obs.now.lse, torch.inf)
    return kl(obs.now, obs.past[0]).masked_fill((obs.seen < 1)[:, None], torch.inf)


def jsd(p: Prediction, q: Prediction, *, exact: bool = True) -> Tensor:
    """Return the Jensen-Shannon divergence on the union of both top-K sets and a residual bin, in [0, ln 2].

    With `exact`, both sides keep their true mass on the union, which needs the logits of both. Otherwise each
    side has only its own top-K and counts 0 for the other's candidates, as the released code does.
    """
    same = p.top_ids[..., :, None] == q.top_ids[..., None, :]  # [B, W, K, K]
    only_q = ~same.any(-2)  # candidates of q that p's top-K lacks
    p_top, q_top = p.top_probs, q.top_probs
    if exact:
        q_at_p, p_at_q = _mass_at(q, p, same), _mass_at(p, q, same.mT)
    else:
        q_at_p = (same * q_top[..., None, :]).sum(-1)
        p_at_q = torch.zeros_like(q_top)
    p_mass = _with_residual(torch.cat([p_top, p_at_q * only_q], dim=-1))
    q_mass = _with_residual(torch.cat([q_at_p, q_top * only_q], dim=-1))
    gain = _entr((p_mass + q_mass) / 2) - (_entr(p_mass) + _entr(q_mass)) / 2
    return gain.sum(-1).clamp(0, LN2)


def _mass_at(q: Prediction, p: Prediction, same: Tensor) -> Tensor:
    """Return q's probability of p's candidates, [B, W, K]; `same` [B, W, K, K] marks those that q has too."""
    if q.hidden is None:
        return (q.full_logits.gather(-1, p.top_ids) - q.lse[..., None]).exp()
    own = torch.where(same, q.top_logits[..., None, :], -torch.inf).amax(-1)
    logits = torch.where(same.any(-1), own, q.hidden.logits_of(p.top_ids))
    # only a ban makes a logit -inf, and it held for q too, but logits computed again from q's head lack it
    logits = logits.masked_fill(p.top_logits == -torch.inf, -torch.inf)
    return (logits - q.lse[..., None]).exp()


def kl(p: Prediction, q: Prediction) -> Tensor:
    """Return KL(p || q) over the vocabulary, in nats, with KL_FLOOR added to the probabilities in logarithms.

    The floor comes from KLASS. It keeps the divergence finite where q gives a token no probability.
    """
    return by_rows(_kl, p.full_logits, q.full_logits)


def _entr(mass: Tensor) -> Tensor:
    """Return -x ln x, with 0 at 0."""
    entr: Tensor = torch.special.entr(mass)
    return entr


def _entropy(logits: Tensor) -> Tensor:
    return _entr(logits.float().softmax(-1)).sum(-1)


def _kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    p, q = p_logits.float().softmax(-1), q_logits.float().softmax(-1)
    # take one logarithm of the ratio, in place: on a CPU, new memory costs more than arithmetic
    ratio = (p + KL_FLOOR).div_(q.add_(KL_FLOOR))
    return ratio.log_().mul_(p).sum(-1).clamp(min=0)


def _with_residual(mass: Tensor) -> Tensor:
    """Append the mass outside the support as one more bin, [..., A] -> [..., A + 1]."""
    return torch.cat([mass, (1 - mass.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)
