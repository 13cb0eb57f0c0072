"""The tiny golden checkpoints with a small byte-level tokenizer of their own."""

from __future__ import annotations

import json
import shutil
from functools import cache
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tests.conftest import GOLDENS
from unmask.models import load
from unmask.models.tokens import Tokenizer
from unmask.models.trunk import Trunk

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
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(islice(product("etaoinshrdlucmfw", repeat=2), WORDS - len(letters)))
    vocabulary = {token: i for i, token in enumerate([*letters, *("".join(pair) for pair in pairs)])}
    backend = Backend(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def build_tokenizer(name: str) -> Tokenizer:
    """A tokenizer whose special ids are those of the checkpoint."""
    llada = name.startswith("llada")
    special = LLADA_SPECIAL if llada else DREAM_SPECIAL
    described = {str(i): {"content": token, "special": True} for i, token in special.items()}
    settings = {**(LLADA_FILES if llada else DREAM_FILES), "added_tokens_decoder": described}
    with TemporaryDirectory() as place:
        folder = Path(place)
        for file in ("config.json", "generation_config.json"):
            shutil.copy(GOLDENS / name / file, folder)
        words().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return Tokenizer.from_folder(folder)


@cache
def tiny(name: str) -> Trunk:
    """A golden checkpoint that reads and writes text."""
    model = load(GOLDENS / name, device="cpu", dtype="float32")
    model.tokenizer = build_tokenizer(name)
    return model


@pytest.fixture(params=("llada_tiny", "dream_tiny"))
def model(request: pytest.FixtureRequest) -> Trunk:
    return tiny(request.param)


@pytest.fixture
def llada() -> Trunk:
    return tiny("llada_tiny")


@pytest.fixture
def dream() -> Trunk:
    return tiny("dream_tiny")


@pytest.fixture
def calm() -> Trunk:
    """A model that ends its texts."""
    return tiny("dream_calm_tiny")
