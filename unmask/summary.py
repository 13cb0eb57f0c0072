"""From logits to a Prediction: the one pass over the vocabulary that every sampler needs. Always float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unmask.rows import by_rows
from unmask.types import Prediction

CHUNK = 128  # vocabulary columns per first-stage maximum


def summarize(logits: Tensor, top_k: int) -> Prediction:
    """Top-K candidates (ties go to the lower id) and log-sum-exp of logits [B, W, V]."""
    logits = logits.float()
    top_ids = top_k_ids(logits, top_k)
    return Prediction(top_ids, logits.gather(-1, top_ids), by_rows(_log_sum_exp, logits), logits)


def ban(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """The same logits [B, W, V], written in place, with zero probability for the tokens `ids`."""
    for token in ids:
        logits[..., token] = -torch.inf
    return logits


def top_k_ids(logits: Tensor, k: int) -> Tensor:
    """Ids of the K largest logits, largest first, ties to the lower id, [..., V] -> [..., min(K, V)].

    `torch.topk` breaks ties as it likes. The K best tokens lie in the K chunks with the best maxima (of equal
    chunks the leftmost), so two small stable sorts decide the order after a single pass over the vocabulary.
    """
    vocabulary = logits.shape[-1]
    whole = vocabulary // CHUNK * CHUNK
    maxima = logits[..., :whole].reshape(*logits.shape[:-1], whole // CHUNK, CHUNK).amax(-1)
    if whole < vocabulary:
        maxima = torch.cat([maxima, logits[..., whole:].amax(-1, keepdim=True)], dim=-1)
    chunks = maxima.sort(dim=-1, descending=True, stable=True).indices[..., :k].sort(dim=-1).values
    ids = (chunks[..., None] * CHUNK + torch.arange(CHUNK, device=logits.device)).flatten(-2)
    values = logits.gather(-1, ids.clamp(max=vocabulary - 1)).masked_fill(ids >= vocabulary, -torch.inf)
    best = values.sort(dim=-1, descending=True, stable=True).indices[..., : min(k, vocabulary)]
    return ids.gather(-1, best)


def _log_sum_exp(logits: Tensor) -> Tensor:
    return logits.logsumexp(-1)
