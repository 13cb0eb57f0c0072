"""Facts that a config leaves out: the mask id from the tokenizer's files, the block length from the name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from unmask.models.checkpoint.files import CheckpointFiles, read_object, token_text

# how published tokenizers without a mask_token spell the mask
MASKS = ("<|mask|>", "<|MASK|>", "<MASK>", "|<MASK>|")
BD3LM_BLOCK = 32  # the block length of dllm's BD3LM checkpoints


def mask_id(folder: Path) -> int | None:
    """Return the id of the tokenizer's mask token, or of an added token with a known name, or None."""
    files = CheckpointFiles.read(folder)
    ids = dict(_added_ids(files))
    declared = files.named_tokens().get("mask_token")
    return next((ids[text] for text in (declared, *MASKS) if text and text in ids), None)


def _added_ids(files: CheckpointFiles) -> Iterator[tuple[str | None, int]]:
    """Yield (text, id) of every added token that has both."""
    added = read_object(files.folder / "tokenizer.json").get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and type(token.get("id")) is int:
            yield token_text(token), token["id"]
    decoder = files.tokenizer_config.get("added_tokens_decoder")
    for key, token in decoder.items() if isinstance(decoder, dict) else []:
        if key.isdecimal():
            yield token_text(token), int(key)
    yield from ((text, number) for text, number in files.added_tokens.items() if type(number) is int)


def block_size(folder: Path, config: Mapping[str, object]) -> int | None:
    """Return the block length that a checkpoint's name implies, as in SDAR-8B-Chat-b32, or None."""
    kind, name = str(config.get("model_type")).lower(), checkpoint_name(folder)
    if kind.startswith("sdar") and (found := re.search(r"-b(\d{1,4})(?!\w)", name)):
        return int(found.group(1))
    return BD3LM_BLOCK if kind.startswith("a2d-") and "bd3lm" in name.lower() else None


def checkpoint_name(folder: Path) -> str:
    """Return the name of a folder, or of the repository that a snapshot of the hub belongs to."""
    place = folder.resolve()
    return place.parents[1].name if place.parent.name == "snapshots" else place.name
