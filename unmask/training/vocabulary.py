"""Train the tokenizer of the shipped models on the tasks, and write it in LLaDA's or Dream's layout.

Both share one byte-level BPE with Qwen2's split: each digit is a token, and words keep their leading space.
Every word that is an option of a question is one token.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unmask.models.text.vocabulary import QWEN2_SPLIT
from unmask.training.tasks import draw_training
from unmask.training.tasks.world.facts import RELATIONS
from unmask.training.tasks.world.scripts import SCRIPTS

TokenizerLayout = Literal["llada", "dream"]

SIZE = 1536
SEED = 7
TEXTS = 60_000
OPTION_WEIGHT = 50  # each option is added once per this many texts

BEGIN = {"llada": "<|startoftext|>", "dream": "<|beginoftext|>"}
MASK = {"llada": "<|mdm_mask|>", "dream": "<|mask|>"}
END, SYSTEM, USER, ASSISTANT = "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"
NUM_SPECIAL = 6

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}{{ eos_token }}"
    "{% elif message['role'] == 'system' %}<|system|>{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def special_tokens(layout: TokenizerLayout) -> list[str]:
    """Return the special tokens in id order; their ids are the last of the vocabulary."""
    return [BEGIN[layout], END, MASK[layout], SYSTEM, USER, ASSISTANT]


def chat_text(prompt: str, layout: TokenizerLayout = "llada") -> str:
    """Return a prompt as the chat template renders it, without the cost of rendering."""
    return f"{BEGIN[layout]}{USER}{prompt}{ASSISTANT}"


def training_texts(count: int = TEXTS, seed: int = SEED) -> Iterator[str]:
    """Yield prompts and answers as in training, and option words often enough to become tokens."""
    rng = random.Random(seed)
    words = [word for relation in RELATIONS for word in (*relation.facts, *relation.values)]
    words += [step.split()[0] for script in SCRIPTS for step in script.steps]
    for word in words:
        yield f" {word}" * (count // OPTION_WEIGHT)
    for _ in range(count):
        item = draw_training(rng)
        yield item.prompt
        yield item.answer


def train(count: int = TEXTS) -> Tokenizer:
    """Train the tokenizer, without special tokens."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - NUM_SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(training_texts(count), trainer)
    return backend


def write(backend: Tokenizer, folder: Path, layout: TokenizerLayout) -> None:
    """Write the tokenizer files in one family's published layout."""
    folder.mkdir(parents=True, exist_ok=True)
    first, added = SIZE - NUM_SPECIAL, special_tokens(layout)
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False) | {"special": True}
    named = {"bos_token": BEGIN[layout], "eos_token": END, "pad_token": END, "mask_token": MASK[layout]}
    more = {"additional_special_tokens": [SYSTEM, USER, ASSISTANT]}
    if layout == "llada":
        complete = Tokenizer.from_str(backend.to_str())
        complete.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in added])
        complete.save(str(folder / "tokenizer.json"))
    else:
        backend.model.save(str(folder))  # vocab.json and merges.txt
        _write_json(folder / "added_tokens.json", {text: first + i for i, text in enumerate(added)})
    _write_json(folder / "special_tokens_map.json", named | more)
    settings = {
        "added_tokens_decoder": {str(first + i): {"content": text} | flags for i, text in enumerate(added)},
        **named,
        **more,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 288,
        "tokenizer_class": "PreTrainedTokenizerFast" if layout == "llada" else "Qwen2Tokenizer",
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train the tokenizer and write its files."""
    parser = argparse.ArgumentParser(prog="python -m unmask.training.vocabulary", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=get_args(TokenizerLayout), default="llada")
    options = parser.parse_args()
    write(train(), options.folder, options.layout)
    print(f"wrote a vocabulary of {SIZE} tokens to {options.folder}")


if __name__ == "__main__":
    main()
