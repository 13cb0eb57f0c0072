"""Whole checkpoint folders: the weights of a golden one beside a small byte-level tokenizer."""

from __future__ import annotations

import json
import shutil
from itertools import islice, product
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tests.conftest import GOLDENS

WORDS = 499  # ordinary tokens: the bytes, then pairs of frequent letters
LLADA_SPECIAL = {
    499: "<|startoftext|>",
    500: "<|endoftext|>",
    501: "<|start_header_id|>",
    502: "<|end_header_id|>",
    503: "<|eot_id|>",
    509: "<|mdm_mask|>",
}
DREAM_SPECIAL = {
    499: "<|im_start|>",
    500: "<|im_end|>",
    501: "<|endoftext|>",
    502: "<|beginoftext|>",
    510: "<|mask|>",
}
LLADA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>{{ message.content }}<|eot_id|>"
    "{% endfor %}<|start_header_id|>assistant<|end_header_id|>"
)
DREAM_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
LLADA_FILES = {
    "bos_token": "<|startoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "chat_template": LLADA_TEMPLATE,
}
DREAM_FILES = {
    "bos_token": "<|beginoftext|>",
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
    "mask_token": "<|mask|>",
    "chat_template": DREAM_TEMPLATE,
}


def words() -> Backend:
    """A byte-level tokenizer without special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(islice(product("etaoinshrdlucmfw", repeat=2), WORDS - len(letters)))
    vocabulary = {token: i for i, token in enumerate([*letters, *("".join(pair) for pair in pairs)])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def write_tokenizer(folder: Path, name: str) -> None:
    """Tokenizer files whose special ids are those of the golden checkpoint `name`."""
    llada = name.startswith("llada")
    special = LLADA_SPECIAL if llada else DREAM_SPECIAL
    described = {str(token): {"content": text, "special": True} for token, text in special.items()}
    settings = {**(LLADA_FILES if llada else DREAM_FILES), "added_tokens_decoder": described}
    words().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_checkpoint(folder: Path, name: str) -> Path:
    """A copy of the golden checkpoint `name` that reads and writes text."""
    shutil.copytree(GOLDENS / name, folder)
    write_tokenizer(folder, name)
    return folder
