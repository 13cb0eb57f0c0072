"""Build the `tokenizers` object of a checkpoint, with each token at exactly the id that its files give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import tokenizers

from unmask.models.checkpoint.files import CheckpointFiles, JsonObject, read_object, read_text, token_text

QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def build_backend(files: CheckpointFiles) -> tokenizers.Tokenizer:
    """Build the `tokenizers` object, with each added token at the id that the files give."""
    specification = _specification(files)
    ids = _vocabulary_ids(specification["model"]["vocab"], files.folder)
    specification["added_tokens"] = _added_tokens(specification, files, ids)
    # the library assigns new ids to added tokens unless the vocabulary already has them
    specification["model"]["vocab"] = ids
    largest = max(ids, key=ids.__getitem__)
    check_fits(files, ids[largest], largest)
    try:
        return tokenizers.Tokenizer.from_buffer(json.dumps(specification).encode())
    except ValueError as error:
        raise ValueError(f"the tokenizer files of {files.folder} do not fit together: {error}") from error


def _specification(files: CheckpointFiles) -> JsonObject:
    """Return the tokenizer in the JSON format of `tokenizers`, built from the available files."""
    published = files.folder / "tokenizer.json"
    if published.exists():
        specification = read_object(published)
        if not isinstance(specification.get("model"), dict) or "vocab" not in specification["model"]:
            raise ValueError(f"{published} has no model.vocab; download it again")
        # encode whole texts, because the caller sets the limits
        return specification | {"truncation": None, "padding": None}
    vocabulary, merges = files.folder / "vocab.json", files.folder / "merges.txt"
    if not vocabulary.exists() or not merges.exists():
        raise ValueError(
            f"{files.folder} has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"
        )
    declared = files.tokenizer_config.get("tokenizer_class")
    if declared is not None and declared not in QWEN2_CLASSES:
        raise ValueError(
            f"tokenizer_class is {declared!r}, but vocab.json and merges.txt are read by Qwen2's rules only "
            f"({', '.join(QWEN2_CLASSES)}); save a tokenizer.json for {files.folder}"
        )
    lines = read_text(merges).split("\n")
    rules = [line for line in lines if line.strip() and not line.startswith("#version")]
    return _qwen2_specification(read_object(vocabulary), rules)


def _qwen2_specification(vocabulary: JsonObject, merges: list[str]) -> JsonObject:
    """Return Qwen2's byte-level BPE: NFC, its own split, no prefix space."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def _vocabulary_ids(vocabulary: object, folder: Path) -> dict[str, int]:
    """Map tokens to ids; raise unless each id is a number and unique."""
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ValueError(f"the vocabulary of {folder} must map tokens to ids, as BPE and WordPiece do")
    if not all(is_id(token_id) for token_id in vocabulary.values()):
        raise ValueError(f"the vocabulary of {folder} has ids that are not numbers; download it again")
    if len(set(vocabulary.values())) < len(vocabulary):
        raise ValueError(f"the vocabulary of {folder} gives one id to two tokens; download it again")
    return dict(vocabulary)


def _added_tokens(specification: JsonObject, files: CheckpointFiles, ids: dict[str, int]) -> list[JsonObject]:
    """Return every added token with its flags, in id order; add them to `ids`, and raise on a clash."""
    owners = {token_id: text for text, token_id in ids.items()}
    added: dict[str, JsonObject] = {}
    for source, token_id, token in _declared_tokens(specification, files):
        text = token_text(token)
        if text is None or not isinstance(token, dict):
            raise ValueError(f"an added token in {source} has no text, but {token!r}; give it a content")
        if not is_id(token_id):
            raise ValueError(f"added token {text!r} in {source} has the impossible id {token_id!r}")
        if ids.setdefault(text, token_id) != token_id:
            raise ValueError(f"token {text!r} is {token_id} in {source}, but {ids[text]} in another file")
        if owners.setdefault(token_id, text) != text:
            raise ValueError(f"id {token_id} is {text!r} in {source}, but {owners[token_id]!r} elsewhere")
        flags = {key: bool(token.get(key)) for key in TOKEN_FLAGS}
        added.setdefault(text, {"id": token_id, "content": text, **flags})
    for text in files.special_tokens():
        if text not in ids:
            raise ValueError(
                f"special token {text!r} has no id in {files.folder}: "
                "name it in added_tokens.json or in added_tokens_decoder of tokenizer_config.json"
            )
        added.setdefault(text, {"id": ids[text], "content": text, **dict.fromkeys(TOKEN_FLAGS, False)})
        added[text]["special"] = True
    return sorted(added.values(), key=lambda token: int(token["id"]))


def _declared_tokens(specification: JsonObject, files: CheckpointFiles) -> Iterator[tuple[str, Any, object]]:
    """Yield (file, id, description) of each added token with an id, the most complete descriptions first."""
    for token in specification.get("added_tokens") or []:
        yield "tokenizer.json", token.get("id") if isinstance(token, dict) else None, token
    decoder = files.tokenizer_config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise ValueError(
            f"added_tokens_decoder in tokenizer_config.json must map ids to tokens, got {decoder!r}"
        )
    for key, token in decoder.items():
        yield "tokenizer_config.json", int(key) if key.isdecimal() else key, token
    special = files.special_tokens()
    for text, token_id in files.added_tokens.items():
        yield "added_tokens.json", token_id, {"content": text, "normalized": text not in special}


def is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_fits(files: CheckpointFiles, token_id: int, what: str) -> None:
    """Raise if the id is outside the vocabulary of config.json."""
    size = files.config.get("vocab_size")
    if isinstance(size, int) and token_id >= size:
        raise ValueError(
            f"{what!r} has id {token_id} in {files.folder}, but vocab_size in config.json is {size}"
        )
