"""Top-K and log-sum-exp of logits in one read, in Triton; `unmask.decoding.summary` says the same in torch.

One kernel reads the vocabulary in chunks and leaves the maximum and the sum of each. The K best tokens lie in
the K chunks with the best maxima, so the other reads those again and finds them. The cut depends on the
vocabulary alone: a row has the same numbers in any batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.fast.kernels import device_of

CHUNK = 256  # columns
TOGETHER = 16  # chunks that one program reads
REMOVED: Any = tl.constexpr(-(2**63))
LAST_ID: Any = tl.constexpr(2**31 - 1)


def summarize(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and values of the K largest logits (ties to the lower id) and the log-sum-exp of [..., V].

    A row with a NaN or +inf has no finite log-sum-exp, and candidates without meaning.
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
    _scan[(count, triton.cdiv(chunks, TOGETHER))](
        rows, peaks[0], peaks[1], vocabulary, chunks, CHUNK=CHUNK, TOGETHER=TOGETHER
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
    logits, peaks, sums, vocabulary, chunks, CHUNK: tl.constexpr, TOGETHER: tl.constexpr
):
    """The maximum of some chunks of a row, and the sum of exponentials below it."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    column = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    given = tl.load(logits + row * vocabulary + column, mask=column < vocabulary, other=-float("inf"))
    value = given.to(tl.float32)
    peak = tl.max(value, axis=1)
    shift = tl.where(peak == -float("inf"), 0.0, peak)  # -inf - -inf would be no number
    total = tl.sum(tl.exp(value - shift[:, None]), axis=1)
    tl.store(peaks + row * chunks + chunk, peak, mask=chunk < chunks)
    tl.store(sums + row * chunks + chunk, total, mask=chunk < chunks)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _keys(value, place):  # type: ignore[no-untyped-def]
    """Whole numbers that sort as float32 values do, of equal ones the lower place first."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # -0 and +0 are equal
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (order << 32) + (LAST_ID - place)


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
    """The log-sum-exp of a row, and its K best from the K chunks with the best maxima."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    known = chunk < chunks
    peak = tl.load(peaks + row * chunks + chunk, mask=known, other=-float("inf"))
    total = tl.load(sums + row * chunks + chunk, mask=known, other=0.0)
    highest = tl.max(peak, axis=0)
    shift = tl.where(highest == -float("inf"), 0.0, highest)
    tl.store(lse + row, shift + tl.log(tl.sum(total * tl.exp(peak - shift), axis=0)))

    key = tl.where(known, _keys(peak, chunk), REMOVED)
    place = tl.arange(0, WIDTH)
    chosen = tl.full((WIDTH,), -1, tl.int32)
    for rank in tl.static_range(k):
        best = tl.max(key, axis=0)
        key = tl.where(key == best, REMOVED, key)
        found = tl.where(best == REMOVED, -1, LAST_ID - (best & 0xFFFFFFFF))
        chosen = tl.where(place == rank, found.to(tl.int32), chosen)

    column = chosen[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    inside = (chosen[:, None] >= 0) & (column < vocabulary)
    given = tl.load(logits + row * vocabulary + column, mask=inside, other=-float("inf"))
    key = tl.where(inside, _keys(given.to(tl.float32), column), REMOVED)
    for rank in tl.static_range(k):
        best = tl.max(tl.max(key, axis=1), axis=0)
        key = tl.where(key == best, REMOVED, key)
        found = LAST_ID - (best & 0xFFFFFFFF)
        tl.store(ids + row * k + rank, found)
        tl.store(values + row * k + rank, tl.load(logits + row * vocabulary + found).to(tl.float32))
