"""Read the JSON files of a checkpoint folder that define its tokens."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The small JSON files of a checkpoint folder; a missing file is an empty dict."""

    folder: Path
    config: JsonObject
    generation_config: JsonObject
    tokenizer_config: JsonObject
    added_tokens: JsonObject
    special_tokens_map: JsonObject

    @classmethod
    def read(cls, folder: Path) -> CheckpointFiles:
        """Read the files of a folder; raise if there is no such folder."""
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder; pass the folder of a downloaded checkpoint")
        return cls(
            folder,
            config=read_object(folder / "config.json"),
            generation_config=read_object(folder / "generation_config.json"),
            tokenizer_config=read_object(folder / "tokenizer_config.json"),
            added_tokens=read_object(folder / "added_tokens.json"),
            special_tokens_map=read_object(folder / "special_tokens_map.json"),
        )

    def named_tokens(self) -> dict[str, str]:
        """Return the text of bos_token, eos_token and so on, under the names that chat templates use."""
        merged = self.special_tokens_map | {k: v for k, v in self.tokenizer_config.items() if v is not None}
        texts = {key: token_text(value) for key, value in merged.items() if key.endswith("_token")}
        return {key: text for key, text in texts.items() if text is not None}

    def special_tokens(self) -> set[str]:
        """Return the text of every token that the files mark as special without giving an id."""
        special = set(self.named_tokens().values())
        for source in (self.special_tokens_map, self.tokenizer_config):
            for key in ("additional_special_tokens", "extra_special_tokens"):
                more = source.get(key) or []
                texts = map(token_text, more.values() if isinstance(more, dict) else more)
                special.update(text for text in texts if text is not None)
        return special


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer files to another folder."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def read_object(path: Path) -> JsonObject:
    """Read a JSON object from a file, or return {} if there is no file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}; download it again")
    return value


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); download it again") from error


def token_text(value: object) -> str | None:
    """Return the text of a token given as a string or as an object with flags, or None if it has none."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None
