"""Two small checkpoints' text files, laid out as LLaDA and Dream publish theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from unmask.models.text.tokens import Tokenizer
from unmask.models.text.vocabulary import QWEN2_SPLIT

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and it doesn't look back.",
    "def add(a, b):\n    return a + b\n\n\nprint(add(17, 23))  # 40",
    "Größe, café, naïve, señor; 漢字とかな, привет мир, 🙂🙃 — “quotes”…",
    "user assistant system You are a helpful assistant.",
]

# what the published LLaDA template does: a header per message, content trimmed, always asks for the answer
LLADA_TEMPLATE = (
    "{% for message in messages %}"
    "{% set turn = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.first %}{% set turn = bos_token + turn %}{% endif %}{{ turn }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)

# what the published Dream template does, tools left out: ChatML with a default system message
DREAM_TEMPLATE = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('user', 'assistant') or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLADA_ADDED = [
    *("<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|reserved_token_0|>", "<|reserved_token_1|>"),
    *("<|mdm_mask|>", "<|reserved_token_2|>", "<role>", "</role>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]
DREAM_ADDED = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    *("<|beginoftext|>", "<|mask|>"),
]


def trained(pre_tokenizer: Any, normalizer: Any = None) -> Backend:
    """A byte-level BPE with all 256 bytes and a few merges."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=sorted(alphabet), show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def qwen2_backend() -> Backend:
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return trained(pre_tokenizers.Sequence([split, byte_level]), normalizers.NFC())


def flags(text: str, special: bool = True) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **plain, "special": special}


def decoder_entries(first: int, tokens: list[str], plain: tuple[str, ...] = ()) -> dict[str, Any]:
    return {str(first + i): flags(text, text not in plain) for i, text in enumerate(tokens)}


def write(folder: Path, **files: Any) -> None:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(
            json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8"
        )


def build_llada(folder: Path) -> None:
    backend = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    first = backend.get_vocab_size()
    ids = {text: first + i for i, text in enumerate(LLADA_ADDED)}
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in LLADA_ADDED])
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|startoftext|>", "cls_token": "[CLS]"}
    named |= {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    more = {"additional_special_tokens": ["<role>", "</role>"]}
    eos, bos, mask = ids["<|endoftext|>"], ids["<|startoftext|>"], ids["<|mdm_mask|>"]
    write(
        folder,
        config={
            "model_type": "llada",
            "vocab_size": first + 40,
            "eos_token_id": eos,
            "pad_token_id": eos,
            "mask_token_id": mask,
        },
        generation_config={"bos_token_id": bos, "eos_token_id": eos},
        special_tokens_map=more | {key: {**flags(text), "special": None} for key, text in named.items()},
        tokenizer_config={
            "add_bos_token": False,
            "added_tokens_decoder": decoder_entries(first, LLADA_ADDED),
            **more,
            **named,
            "chat_template": LLADA_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "gmask_token": "[gMASK]",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def build_dream(folder: Path) -> None:
    backend = qwen2_backend()
    backend.model.save(str(folder))
    first = backend.get_vocab_size()
    ids = {text: first + i for i, text in enumerate(DREAM_ADDED)}
    named = {"bos_token": "<|beginoftext|>", "eos_token": "<|endoftext|>"}
    named |= {"mask_token": "<|mask|>", "pad_token": "<|endoftext|>"}
    eos = ids["<|endoftext|>"]
    configured = {"bos_token_id": eos, "eos_token_id": eos, "pad_token_id": eos}
    write(
        folder,
        config={
            "model_type": "Dream",
            "vocab_size": first + 40,
            "mask_token_id": ids["<|mask|>"],
            **configured,
        },
        generation_config={"mask_token_id": None, **configured},
        added_tokens=ids,
        special_tokens_map={key: flags(text) for key, text in named.items()},
        tokenizer_config={
            "added_tokens_decoder": decoder_entries(first, DREAM_ADDED, ("<tool_call>", "</tool_call>")),
            "additional_special_tokens": ["<|beginoftext|>", "<|mask|>"],
            **named,
            "chat_template": DREAM_TEMPLATE,
            "tokenizer_class": "DreamTokenizer",
            "unk_token": None,
        },
    )


@pytest.fixture(scope="session")
def qwen2() -> Backend:
    """The model behind the Dream checkpoint, built by the library itself; training is deterministic."""
    return qwen2_backend()


@pytest.fixture(scope="session")
def llada_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llada")
    build_llada(folder)
    return folder


@pytest.fixture(scope="session")
def dream_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dream")
    build_dream(folder)
    return folder


@pytest.fixture(scope="session")
def llada(llada_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(llada_folder)


@pytest.fixture(scope="session")
def dream(dream_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(dream_folder)


@pytest.fixture(scope="session", params=["llada", "dream"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    value: Tokenizer = request.getfixturevalue(request.param)
    return value


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """Copy a checkpoint and change fields of one of its JSON files; a field set to `...` is removed."""

    def edit(source: Path, name: str, **changes: Any) -> Path:
        folder = source if source.parent == tmp_path else tmp_path / "edited"
        if folder != source:
            shutil.copytree(source, folder)
        path = folder / f"{name}.json"
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        merged = {key: value for key, value in {**content, **changes}.items() if value is not ...}
        write(folder, **{name: merged})
        return folder

    return edit
