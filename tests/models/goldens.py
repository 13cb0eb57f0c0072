"""What the tests of the models share."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

GOLDENS = Path(__file__).parents[1] / "goldens"
CHECKPOINTS = ("llada_tiny", "llada_emb_tiny", "dream_tiny", "dream_calm_tiny")
TOLERANCE = 2e-4


def left_pad(rows: list[Tensor], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch: tokens and attend, [B, N]."""
    n = max(len(row) for row in rows)
    tokens = torch.stack([torch.cat((torch.full((n - len(row),), pad_id), row)) for row in rows])
    attend = torch.stack([torch.arange(n) >= n - len(row) for row in rows])
    return tokens, attend
