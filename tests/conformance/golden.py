"""Reading a golden set in its documented format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.models import load
from unmask.types import MaskedLM

DEVICE = "cpu"  # set by conftest.py


@dataclass(frozen=True)
class Run:
    """One recorded decoding of one case."""

    folder: Path
    case: dict[str, Any]
    number: int

    def __str__(self) -> str:
        return f"{self.case['case']}-r{self.number}"

    @property
    def quirks(self) -> list[str]:
        return list(self.case["runs"][self.number]["quirks"])

    @property
    def batch(self) -> int:
        return int(self.case["runs"][self.number]["batch"])

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        prefix = f"r{self.number}."
        with np.load(self.folder / "trajectories" / self.case["file"]) as data:
            return {name.removeprefix(prefix): data[name] for name in data.files if name.startswith(prefix)}

    @property
    def model(self) -> MaskedLM:
        return checkpoint(self.folder / self.case["checkpoint"])


def runs(folder: Path) -> list[Run]:
    manifest = json.loads((folder / "trajectories" / "manifest.json").read_text())
    return [Run(folder, case, number) for case in manifest["cases"] for number in range(case["n_runs"])]


@lru_cache(maxsize=8)
def checkpoint(folder: Path) -> MaskedLM:
    return load(folder, device=DEVICE, dtype="float32")


def forwards(folder: Path) -> list[dict[str, Any]]:
    """The recorded forward passes; each case knows its folder."""
    manifest = json.loads((folder / "logits" / "manifest.json").read_text())
    return [{**case, "folder": folder} for case in manifest["cases"]]


def forward_arrays(case: dict[str, Any]) -> dict[str, Tensor]:
    with np.load(case["folder"] / "logits" / case["file"]) as data:
        return {name: torch.from_numpy(data[name]).to(DEVICE) for name in data.files}
