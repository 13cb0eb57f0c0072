"""The memory that a row keeps between two steps."""

from __future__ import annotations

from unmask.types import ModelInfo, Needs

ID, NUMBER = 8, 4  # bytes


def state_bytes(needs: Needs, info: ModelInfo, columns: int) -> int:
    """Return the most bytes that one row keeps for its sampler: earlier predictions and the carry.

    `columns` is the width of the row's widest window. A model with a head may keep smaller hidden states in
    place of the logits for `Needs.gather_logits`. The logits are counted in any case.
    """
    prediction = needs.top_k * (ID + NUMBER) + NUMBER
    if needs.logits or needs.gather_logits:
        prediction += NUMBER * info.vocab_size
    return columns * (needs.lookback * prediction + NUMBER * needs.carry)
