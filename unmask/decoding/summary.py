"""Summarize logits as a Prediction, in one pass over the vocabulary and in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from unmask.fast import kernels
from unmask.types import Prediction

CHUNK = 128  # vocabulary columns per first-stage maximum
# Elements per piece. On a CPU the intermediates of a piece fit into the cache; larger ones would need new
# pages of memory. On a GPU they need a fraction of the memory of the logits, for a few more launches.
CPU_PIECE = 1 << 19
DEVICE_PIECE = 1 << 24


def summarize(logits: Tensor, top_k: int) -> Prediction:
    """Return the top-K candidates (ties go to the lower id) and the log-sum-exp of logits [B, W, V]."""
    if logits.is_cuda and kernels.usable(logits, top_k):
        from unmask.fast.kernels.summary import summarize as fused

        return Prediction(*fused(logits, top_k), logits)
    logits = logits.float()
    top_ids = top_k_ids(logits, top_k)
    return Prediction(
        top_ids, logits.gather(-1, top_ids), by_rows(partial(torch.logsumexp, dim=-1), logits), logits
    )


def ban(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Give the tokens `ids` zero probability, in place, and return the logits [B, W, V]."""
    for token in ids:
        logits[..., token] = -torch.inf
    return logits


def top_k_ids(logits: Tensor, k: int) -> Tensor:
    """Return the ids of the K largest logits, ties to the lower id, [..., V] -> [..., min(K, V)].

    The K best tokens are in the K chunks with the best maxima (the leftmost of equal chunks). So two small
    searches find them after a single pass over the vocabulary.
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


def by_rows(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply `work` to tensors [..., V] -> [...], some rows at a time."""
    shape = tensors[0].shape[:-1]
    piece = CPU_PIECE if tensors[0].device.type == "cpu" else DEVICE_PIECE
    rows = [tensor.flatten(0, -2) for tensor in tensors]
    # torch sums a single row in another order, so no piece has one row: results must not depend on the batch
    if shape.numel() == 1:
        rows = [torch.cat([row, row]) for row in rows]
    count = min(-(-rows[0].numel() // piece), max(1, len(rows[0]) // 2))
    pieces = zip(*(torch.tensor_split(row, count) for row in rows), strict=True)
    return torch.cat([work(*piece) for piece in pieces])[: shape.numel()].view(shape)
