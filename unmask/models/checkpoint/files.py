"""The small files of a checkpoint folder. No path leads out of the folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]
LARGEST_FILE = 1 << 30  # bytes of a file other than weights
DEEPEST = 64  # levels of nesting in a JSON file
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
            shutil.copyfile(file_inside(source, name), folder / name)


def file_inside(folder: Path, name: str) -> Path:
    """Return a file of a checkpoint folder; raise if its path or a link leads out of the folder.

    The files of a hub snapshot may be links to the blobs of the same repository.
    """
    path = folder / name
    try:
        home, target = folder.resolve(), path.resolve()
        regular = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, too long a name, a loop of links
        raise ValueError(f"{folder} has no file {name[:100]!r}: {error}") from None
    homes = [home, home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(target.is_relative_to(place) for place in homes):
        raise ValueError(
            f"{name!r} leads out of the checkpoint folder {folder}; put a copy of the file into the folder"
        )
    if path.exists() and not regular:
        raise ValueError(f"{path} is not a regular file; download it again")
    return path


def read_object(path: Path) -> JsonObject:
    """Read a JSON object from a file of a checkpoint folder, or return {} if there is no file."""
    if not path.exists():
        return {}
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}; download it again")
    if too_deep(value):
        raise ValueError(f"{path} is nested more than {DEEPEST} levels deep; download it again")
    return value


def too_deep(value: object) -> bool:
    """Return whether a JSON value has more than `DEEPEST` levels."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        parts = [item.values() if isinstance(item, dict) else item for item in level]
        level = [inner for part in parts for inner in part if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def read_text(path: Path) -> str:
    """Read a text file of a checkpoint folder."""
    path = file_inside(path.parent, path.name)
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise ValueError(f"{path} has {size} bytes, more than the {LARGEST_FILE} allowed; download it again")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); download it again") from error


def token_text(value: object) -> str | None:
    """Return the text of a token given as a string or as an object with flags, or None if it has none."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None
