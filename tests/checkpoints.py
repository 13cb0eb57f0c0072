"""Whole checkpoint folders: the weights of a golden one beside a small tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.conftest import GOLDENS
from tests.text.conftest import DREAM_FILES, DREAM_SPECIAL, LLADA_FILES, LLADA_SPECIAL, words


def write_checkpoint(folder: Path, name: str) -> Path:
    """A copy of the golden checkpoint `name` that reads and writes text."""
    shutil.copytree(GOLDENS / name, folder)
    llada = name.startswith("llada")
    special = LLADA_SPECIAL if llada else DREAM_SPECIAL
    described = {str(token): {"content": text, "special": True} for token, text in special.items()}
    settings = {**(LLADA_FILES if llada else DREAM_FILES), "added_tokens_decoder": described}
    words().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
