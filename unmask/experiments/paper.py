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
    """Return every reported table: name -> model -> figures, mostly row -> task -> [accuracy, steps]."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("paper_tables.json").read_text("utf-8"))
    return tables


def paper_name(model: str) -> str | None:
    """Return the paper's name of a model, or None if the paper does not use it.

    A local folder counts as the model if it has the name of the repository, such as LLaDA-8B-Instruct.
    """
    source = model.partition("@")[0].rstrip("/")
    if source.count("/") == 1 and not source.startswith((".", "/")):
        return MODELS.get(source)
    folders = {hub_id.rpartition("/")[2]: name for hub_id, name in MODELS.items()}
    return folders.get(source.rpartition("/")[2])


def reported(table: str, model: str) -> dict[str, Any]:
    """Return the paper's rows for a model, or an empty dict if it has none."""
    name = paper_name(model)
    rows: dict[str, Any] = paper_tables()[table].get(name, {}) if name else {}
    return rows
