"""The paper's own tables."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

MODELS = {  # hub id -> the paper's name
    "Dream-org/Dream-v0-Instruct-7B": "Dream-7B",
    "GSAI-ML/LLaDA-8B-Instruct": "LLaDA-8B",
    "GSAI-ML/LLaDA-1.5": "LLaDA-1.5-8B",
}


@cache
def paper_tables() -> dict[str, Any]:
    """Return every reported table: name -> model -> row -> task -> [accuracy, steps]."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("paper_tables.json").read_text("utf-8"))
    return tables


def reported(table: str, model: str) -> dict[str, Any]:
    """Return the paper's rows for a model, or an empty dict if it has none."""
    name = MODELS.get(model.partition("@")[0])
    rows: dict[str, Any] = paper_tables()[table].get(name, {}) if name else {}
    return rows
