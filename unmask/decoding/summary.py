"""Summarize logits as a Prediction, in one pass over the vocabulary and in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.decoding.chunks import by_rows
from unmask.fast import kernels
from unmask.types import Prediction

CHUNK = 128  # vocabulary columns per first-stage maximum


def summarize(logits: Tensor, top_k: int) -> Prediction:
    """Return the top-K candidates (ties go to the lower id) and the log-sum-exp of logits [B, W, V]."""
    if kernels.usable(logits, top_k):
        from unmask.fast.kernels.summary import summarize as fused

        return Prediction(*fused(logits, top_k), logits)
    logits = logits.float()
    top_ids = top_k_ids(logits, top_k)
    return Prediction(top_ids, logits.gather(-1, top_ids), by_rows(_log_sum_exp, logits), logits)


def ban(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Give the tokens `ids` zero probability, in place, and return the logits [B, W, V]."""
    for token in ids:
        logits[..., token] = -torch.inf
    return logits


def top_k_ids(logits: Tensor, k: int) -> Tensor:
    """Return the ids of the K largest logits, ties to the lower id, [..., V] -> [..., min(K, V)].

    The K best tokens lie in the K chunks with the best maxima (of equal chunks the leftmost), so two small
    searches decide the order after a single pass over the vocabulary.
    """
    vocabulary = logits.shape[-1]
    whole = vocabulary // CHUNK * CHUNK
    maxima = logits[..., :whole].reshape(*logits.shape[:-1], whole // CHUNK, CHUNK).amax(-1)
    if whole < vocabulary:
        maxima = torch.cat([maxima, logits[..., whole:].amax(-1, keepdim=True)], dim=-1)
    column = torch.arange(maxima.shape[-1], device=logits.device)
    chunks = _keys(maxima, column).topk(min(k, maxima.shape[-1])).indices
    ids = (chunks[..., None] * CHUNK + torch.arange(CHUNK, device=logits.device)).flatten(-2)
    values = logits.gather(-1, ids.clamp(max=vocabulary - 1))
    # columns beyond the vocabulary get the lowest keys, below that of -inf
    keys = _keys(values, ids).masked_fill(ids >= vocabulary, torch.iinfo(torch.int64).min)
    return ids.gather(-1, keys.topk(min(k, vocabulary)).indices)


def _keys(values: Tensor, ids: Tensor) -> Tensor:
    """Return integers that sort like the float32 values, and equal values by the lower id."""
    bits = (values + 0.0).view(torch.int32)  # -0 becomes +0
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # from sign and magnitude to two's complement
    return (order.long() << 32) - ids


def _log_sum_exp(logits: Tensor) -> Tensor:
    return logits.logsumexp(-1)
