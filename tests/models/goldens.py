"""What the tests of the models share: the tiny checkpoints and their recorded logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

GOLDENS = Path(__file__).parents[1] / "goldens"
CHECKPOINTS = ("llada_tiny", "llada_emb_tiny", "dream_tiny", "dream_calm_tiny")
CASES = [case["case"] for case in json.loads((GOLDENS / "logits/manifest.json").read_text())["cases"]]
TOLERANCE = 2e-4


def golden(case: str) -> dict[str, Tensor]:
    """The arrays of one recorded case."""
    with np.load(GOLDENS / "logits" / f"{case}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def aligned(case: str, data: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Recorded logits per predicted column, and where they may be compared; Dream's are not shifted yet."""
    logits, valid = data["logits"], data["valid"].bool()
    if not case.startswith("dream"):
        return logits, valid
    before = (torch.arange(logits.shape[1]) - 1).clamp(min=0)
    return logits[:, before], valid[:, before] & valid


def left_pad(rows: list[Tensor], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as one batch: tokens and attend, [B, N]."""
    n = max(len(row) for row in rows)
    tokens = torch.stack([torch.cat((torch.full((n - len(row),), pad_id), row)) for row in rows])
    attend = torch.stack([torch.arange(n) >= n - len(row) for row in rows])
    return tokens, attend
