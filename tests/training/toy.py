"""A task that a tiny model learns in seconds, its tokenizer, and a recipe for it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

LETTERS = "abcdefgh"
SPECIAL = ("<end>", "<mask>", "<user>", "<bot>")
TEMPLATE = (
    "{% for m in messages %}{{ ('<user>' if m['role'] == 'user' else '') + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<bot>{% endif %}"
)
SIZES = {"n_layers": 2, "d_model": 64, "n_heads": 2, "mlp_hidden_size": 128}


@dataclass(frozen=True)
class ToyItem:
    prompt: str
    answer: str


def draw(rng: random.Random, shares: Mapping[str, float]) -> ToyItem:
    """Two letters, to be copied, or four, to be doubled."""
    [task] = rng.choices(list(shares), weights=list(shares.values()))
    letters = [rng.choice(LETTERS) for _ in range(2 if task == "copy" else 4)]
    answer = letters if task == "copy" else [letter for letter in letters for _ in range(2)]
    return ToyItem(f"{task} {' '.join(letters)}", " ".join(answer))


def fail(rng: random.Random, shares: Mapping[str, float]) -> ToyItem:
    raise ValueError("nothing to draw")


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """A tokenizer of words with 16 entries."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ("?", "copy", "double", "B", *LETTERS)
    backend = Backend(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": "<end>", "pad_token": "<end>", "mask_token": "<mask>"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def recipe_table(**changes: Mapping[str, Any]) -> dict[str, Any]:
    """The toy's recipe as a table, with fields of its sub-tables changed."""
    table: dict[str, Any] = {
        "name": "toy",
        "seed": 3,
        "model": {"tokenizer": "tokenizer", "config": {"model_type": "llada", "weight_tying": True, **SIZES}},
        "data": {
            "source": "tests.training.toy:draw",
            "phases": [
                {"until": 0.2, "shares": {"copy": 1}},
                {"until": 1, "shares": {"copy": 1, "double": 2}},
            ],
            "lengths": [14, 16],
            "canvas": 9,
            "validation_rows": 32,
        },
        "schedule": {"steps": 12, "warmup_steps": 4},
        "run": {"batch_size": 16, "log_every": 4, "validate_every": 8, "checkpoint_every": 6},
    }
    for name, values in changes.items():
        table[name] = {**table.get(name, {}), **values}
    return table


def write_recipe(folder: Path, **changes: Mapping[str, Any]) -> Path:
    """The toy's tokenizer and recipe in a folder; the recipe's path."""
    write_tokenizer(folder / "tokenizer")
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe_table(**changes)))
    return path
