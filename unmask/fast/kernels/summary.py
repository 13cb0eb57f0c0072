"""Top-k and log-sum-exp of logits in one read, in Triton. `unmask.decoding.summary` is the torch version.

The first kernel reads the vocabulary in chunks and writes the maximum and sum of each. The k best tokens are
in the k chunks with the largest maxima, so the second kernel reads only those again. Chunks depend only on
the vocabulary, so a row gets the same numbers in any batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of

CHUNK = 256  # columns
CHUNKS_PER_PROGRAM = 16
REMOVED: Any = tl.constexpr(-(2**63))
LAST_ID: Any = tl.constexpr(2**31 - 1)


def summarize(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids and values of the k largest logits [..., V] (ties to the lower id), and their log-sum-exp.

    A row with a NaN or +inf gets a log-sum-exp that is not finite, and arbitrary candidates.
    """
    rows = logits.flatten(0, -2).contiguous()
    count, vocabulary = rows.shape
    k, chunks = min(top_k, vocabulary), triton.cdiv(vocabulary, CHUNK)
    peaks = torch.empty(2, count, chunks, dtype=torch.float32, device=logits.device)
    ids = torch.empty(count, k, dtype=torch.int64, device=logits.device)
    values = torch.empty(count, k, dtype=torch.float32, device=logits.device)
    lse = torch.empty(count, dtype=torch.float32, device=logits.device)
    if count:
        with device_of(rows):
            _launch(rows, peaks, ids, values, lse)
    shape = logits.shape[:-1]
    return ids.view(*shape, k), values.view(*shape, k), lse.view(shape)


def _launch(rows: Tensor, peaks: Tensor, ids: Tensor, values: Tensor, lse: Tensor) -> None:
    (count, vocabulary), k, chunks = rows.shape, ids.shape[1], peaks.shape[2]
    _scan[(count, triton.cdiv(chunks, CHUNKS_PER_PROGRAM))](
        rows, peaks[0], peaks[1], vocabulary, chunks, CHUNK=CHUNK, CHUNKS_PER_PROGRAM=CHUNKS_PER_PROGRAM
    )
    _choose[(count,)](
        rows,
        peaks[0],
        peaks[1],
        ids,
        values,
        lse,
        vocabulary,
        chunks,
        k=k,
        WIDTH=triton.next_power_of_2(k),
        CHUNKS=triton.next_power_of_2(chunks),
        CHUNK=CHUNK,
        num_warps=8 if k <= 8 else 16,
    )


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _scan(  # type: ignore[no-untyped-def]
    logits, peaks, sums, vocabulary, chunks, CHUNK: tl.constexpr, CHUNKS_PER_PROGRAM: tl.constexpr
):
    """Compute the maximum of some chunks of a row, and the sum of exponentials relative to it."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * CHUNKS_PER_PROGRAM + tl.arange(0, CHUNKS_PER_PROGRAM)
    column = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    loaded = tl.load(logits + row * vocabulary + column, mask=column < vocabulary, other=-float("inf"))
    value = loaded.to(tl.float32)
    peak = tl.max(value, axis=1)
    shift = tl.where(peak == -float("inf"), 0.0, peak)  # -inf - -inf would be NaN
    total = tl.sum(tl.exp(value - shift[:, None]), axis=1)
    tl.store(peaks + row * chunks + chunk, peak, mask=chunk < chunks)
    tl.store(sums + row * chunks + chunk, total, mask=chunk < chunks)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _keys(value, index):  # type: ignore[no-untyped-def]
    """Make int64 keys that sort like the float32 values; ties sort to the lower index."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # -0 and +0 are equal
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (order << 32) + (LAST_ID - index)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _choose(  # type: ignore[no-untyped-def]
    logits,
    peaks,
    sums,
    ids,
    values,
    lse,
    vocabulary,
    chunks,
    k: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Compute the log-sum-exp of a row, and its k best tokens from the k chunks with the largest maxima."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    known = chunk < chunks
    peak = tl.load(peaks + row * chunks + chunk, mask=known, other=-float("inf"))
    total = tl.load(sums + row * chunks + chunk, mask=known, other=0.0)
    highest = tl.max(peak, axis=0)
    shift = tl.where(highest == -float("inf"), 0.0, highest)
    tl.store(lse + row, shift + tl.log(tl.sum(total * tl.exp(peak - shift), axis=0)))

    key = tl.where(known, _keys(peak, chunk), REMOVED)
    slot = tl.arange(0, WIDTH)
    chosen = tl.full((WIDTH,), -1, tl.int32)
    for rank in tl.static_range(k):
        best = tl.max(key, axis=0)
        key = tl.where(key == best, REMOVED, key)
        found = tl.where(best == REMOVED, -1, LAST_ID - (best & 0xFFFFFFFF))
        chosen = tl.where(slot == rank, found.to(tl.int32), chosen)

    column = chosen[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    inside = (chosen[:, None] >= 0) & (column < vocabulary)
    loaded = tl.load(logits + row * vocabulary + column, mask=inside, other=-float("inf"))
    key = tl.where(inside, _keys(loaded.to(tl.float32), column), REMOVED)
    for rank in tl.static_range(k):
        best = tl.max(tl.max(key, axis=1), axis=0)
        key = tl.where(key == best, REMOVED, key)
        found = LAST_ID - (best & 0xFFFFFFFF)
        tl.store(ids + row * k + rank, found)
        tl.store(values + row * k + rank, tl.load(logits + row * vocabulary + found).to(tl.float32))
