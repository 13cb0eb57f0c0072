"""The memory that a row keeps between two steps."""

from __future__ import annotations

from unmask.types import ModelInfo, Needs

ID, NUMBER = 8, 4  # bytes


def state_bytes(needs: Needs, info: ModelInfo, columns: int) -> int:
    """Return the most bytes that one row keeps for its sampler: earlier predictions, and what it carries.

    `columns` is the width of its widest window. A model with a head keeps hidden states in place of the
    logits that `Needs.gather_logits` asks for, where they are smaller; this counts the logits.
    """
    prediction = needs.top_k * (ID + NUMBER) + NUMBER
    if needs.logits or needs.gather_logits:
        prediction += NUMBER * info.vocab_size
    return columns * (needs.lookback * prediction + NUMBER * needs.carry)
