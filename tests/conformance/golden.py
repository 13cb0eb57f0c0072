"""Read golden sets in their documented format. A set may lack `logits/` or `trajectories/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
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
    def facts(self) -> dict[str, Any]:
        """The manifest's entry of this run; empty if it has none."""
        entries = self.case.get("runs", [])
        return dict(entries[self.number]) if self.number < len(entries) else {}

    @property
    def quirks(self) -> list[str]:
        return list(self.facts.get("quirks", []))

    @property
    def batch(self) -> int:
        return int(self.facts.get("batch") or len(self.arrays["x_init"]))

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        prefix = f"r{self.number}."
        with np.load(self.folder / "trajectories" / self.case["file"]) as data:
            return {name.removeprefix(prefix): data[name] for name in data.files if name.startswith(prefix)}

    @property
    def checkpoint(self) -> Path:
        return checkpoint_of(self.folder, self.case)

    @property
    def model(self) -> MaskedLM:
        return model_in(self.checkpoint)


@dataclass(frozen=True)
class Forward:
    """One recorded forward pass, or a row of cached ones."""

    folder: Path
    case: dict[str, Any]

    def __str__(self) -> str:
        return str(self.case["case"])

    @property
    def file(self) -> Path:
        return self.folder / "logits" / str(self.case["file"])

    @property
    def arrays(self) -> dict[str, Tensor]:
        with np.load(self.file) as data:
            return {name: torch.from_numpy(data[name]).to(DEVICE) for name in data.files}

    @property
    def cached(self) -> bool:
        """True if the case holds calls that reuse keys and values."""
        return "logits" not in (self.case.get("arrays") or self.arrays)

    @property
    def checkpoint(self) -> Path:
        return checkpoint_of(self.folder, self.case)

    @property
    def model(self) -> MaskedLM:
        return model_in(self.checkpoint)


def runs(folders: Sequence[Path]) -> list[Run]:
    """All recorded decodings of these sets."""
    return [
        Run(folder, case, number)
        for folder in folders
        for case in cases(folder, "trajectories")
        for number in range(case.get("n_runs", len(case.get("runs", []))))
    ]


def forwards(folders: Sequence[Path]) -> list[Forward]:
    """All recorded forward passes of these sets."""
    return [Forward(folder, case) for folder in folders for case in cases(folder, "logits")]


def cases(folder: Path, part: str) -> list[dict[str, Any]]:
    """The cases of one part of a set; an empty list if the set lacks that part."""
    manifest = folder / part / "manifest.json"
    return list(json.loads(manifest.read_text())["cases"]) if manifest.exists() else []


def checkpoint_of(folder: Path, case: dict[str, Any]) -> Path:
    """Its folder: in the set, or in the set above it, which may share its checkpoints."""
    name = str(case["checkpoint"])
    own = folder / name
    return own if own.exists() else folder.resolve().parent / name


def label(folders: Sequence[Path], case: Run | Forward) -> str:
    """The name of a case, with that of its set if there are several."""
    return str(case) if len(folders) == 1 else f"{case.folder.name}/{case}"


def model_in(folder: Path) -> MaskedLM:
    """The model of a checkpoint folder. Fail, naming its architecture, if unmask cannot load it."""
    problem = unloadable(folder)
    return fail(problem) if problem else _load(folder)


def unloadable(folder: Path) -> str | None:
    """Why a checkpoint cannot be loaded; None if it can."""
    try:
        _load(folder)
    except Exception as error:  # a family that we do not know may fail anywhere
        return f"unmask cannot load {folder.name} ({architecture(folder)}): {type(error).__name__}: {error}"
    return None


def architecture(folder: Path) -> str:
    """What a checkpoint calls its architecture."""
    file = folder / "config.json"
    if not file.exists():
        return "no config.json"
    config = json.loads(file.read_text())
    return ", ".join(config.get("architectures") or [str(config.get("model_type"))])


def fail(*problems: str) -> NoReturn:
    """Fail a test for what unmask or this harness lacks, without a stack of calls."""
    pytest.fail("; ".join(problems), pytrace=False)


@lru_cache(maxsize=8)
def _load(folder: Path) -> MaskedLM:
    return load(folder, device=DEVICE, dtype="float32")
