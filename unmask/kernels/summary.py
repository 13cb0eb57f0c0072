"""Top-K and log-sum-exp of logits in one read, in Triton; `unmask.summary` says the same in torch.

The vocabulary is cut into parts, so that few rows fill a GPU too: one program per row and part finds the K
best and the sum of the part, one program per row joins them. The cut depends on the vocabulary alone: a row
has the same numbers in any batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BITS = 12  # a program reads 2 ** 12 columns, so that a key of 32 bits holds a column and a 16-bit value
REMOVED: Any = tl.constexpr(-(2**63))
REMOVED_16: Any = tl.constexpr(-(2**31))
LAST_ID: Any = tl.constexpr(2**31 - 1)


def summarize(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and values of the K largest logits (ties to the lower id) and the log-sum-exp of [..., V].

    A row with a NaN or +inf has no finite log-sum-exp, and candidates without meaning.
    """
    rows = logits.flatten(0, -2).contiguous()
    count, vocabulary = rows.shape
    k, parts = min(top_k, vocabulary), triton.cdiv(vocabulary, 1 << BITS)
    keys = torch.empty(count, parts, k, dtype=torch.int64, device=logits.device)
    peaks = torch.empty(2, count, parts, dtype=torch.float32, device=logits.device)
    ids = torch.empty(count, k, dtype=torch.int64, device=logits.device)
    values = torch.empty(count, k, dtype=torch.float32, device=logits.device)
    lse = torch.empty(count, dtype=torch.float32, device=logits.device)
    if count:
        narrow = logits.element_size() == 2
        _summarize_part[(count, parts)](
            rows, keys, peaks[0], peaks[1], vocabulary, parts, k=k, BITS=BITS, NARROW=narrow
        )
        _join_parts[(count,)](
            rows,
            keys,
            peaks[0],
            peaks[1],
            ids,
            values,
            lse,
            vocabulary,
            parts,
            k=k,
            PARTS=triton.next_power_of_2(parts),
            KEYS=triton.next_power_of_2(parts * k),
        )
    shape = logits.shape[:-1]
    return ids.view(*shape, k), values.view(*shape, k), lse.view(shape)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _summarize_part(  # type: ignore[no-untyped-def]
    logits,
    keys,
    peaks,
    sums,
    vocabulary,
    parts,
    k: tl.constexpr,
    BITS: tl.constexpr,
    NARROW: tl.constexpr,
):
    """The K best of one part of a row as keys, its maximum, and its sum of exponentials below that."""
    PART: tl.constexpr = 1 << BITS
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, PART)
    column = part * PART + place
    inside = column < vocabulary
    given = tl.load(logits + row * vocabulary + column, mask=inside, other=-float("inf"))
    value = given.to(tl.float32)
    peak = tl.max(value, axis=0)
    shift = tl.where(peak == -float("inf"), 0.0, peak)  # -inf - -inf would be no number
    tl.store(peaks + row * parts + part, peak)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(value - shift), axis=0))

    # a key sorts by value, then by the lower column
    given = tl.where(value == 0.0, 0.0, value).to(given.dtype)  # -0 and +0 are equal
    if NARROW:
        bits = given.to(tl.int16, bitcast=True).to(tl.int32)
        order = tl.where(bits < 0, bits ^ 0x7FFF, bits)
        key = tl.where(inside, order * PART + (PART - 1 - place), REMOVED_16)
    else:
        bits = given.to(tl.int32, bitcast=True)
        order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
        key = tl.where(inside, order * PART + (PART - 1 - place), REMOVED)
    for rank in tl.static_range(k):
        best = tl.max(key, axis=0)
        if NARROW:
            key = tl.where(key == best, REMOVED_16, key)
            gone = best == REMOVED_16
        else:
            key = tl.where(key == best, REMOVED, key)
            gone = best == REMOVED
        wide = best.to(tl.int64)
        found = part * PART + PART - 1 - (wide & (PART - 1))
        joined = ((wide >> BITS) << 32) + (LAST_ID - found)
        tl.store(keys + (row * parts + part) * k + rank, tl.where(gone, REMOVED, joined))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _join_parts(  # type: ignore[no-untyped-def]
    logits,
    keys,
    peaks,
    sums,
    ids,
    values,
    lse,
    vocabulary,
    parts,
    k: tl.constexpr,
    PARTS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """The K best of a row and its log-sum-exp, from those of its parts."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    peak = tl.load(peaks + row * parts + part, mask=part < parts, other=-float("inf"))
    total = tl.load(sums + row * parts + part, mask=part < parts, other=0.0)
    highest = tl.max(peak, axis=0)
    shift = tl.where(highest == -float("inf"), 0.0, highest)
    tl.store(lse + row, shift + tl.log(tl.sum(total * tl.exp(peak - shift), axis=0)))

    place = tl.arange(0, KEYS)
    key = tl.load(keys + row * parts * k + place, mask=place < parts * k, other=REMOVED)
    for rank in tl.static_range(k):
        best = tl.max(key, axis=0)
        key = tl.where(key == best, REMOVED, key)
        found = LAST_ID - (best & 0xFFFFFFFF)
        tl.store(ids + row * k + rank, found)
        tl.store(values + row * k + rank, tl.load(logits + row * vocabulary + found).to(tl.float32))
