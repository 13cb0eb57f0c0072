"""The tokenizer of the shipped models, trained on the tasks, in the layouts of LLaDA and Dream.

One byte-level BPE with Qwen2's split serves both: every digit is a piece of its own, words keep their space.
Every word that is an option of a question is one piece.
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

Layout = Literal["llada", "dream"]

SIZE = 1536
SEED = 7
TEXTS = 60_000
OPTION_WEIGHT = 50  # an option is added once for so many texts

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


def special_tokens(layout: Layout) -> list[str]:
    """The special tokens in the order of their ids, which are the last of the vocabulary."""
    return [BEGIN[layout], END, MASK[layout], SYSTEM, USER, ASSISTANT]


def chat_text(prompt: str, layout: Layout = "llada") -> str:
    """A prompt as the chat template writes it, without the cost of rendering."""
    return f"{BEGIN[layout]}{USER}{prompt}{ASSISTANT}"


def training_texts(count: int = TEXTS, seed: int = SEED) -> Iterator[str]:
    """Prompts and answers as training draws them, and first words of options often enough to be pieces."""
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
    """The tokenizer without its special tokens."""
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


def write(backend: Tokenizer, folder: Path, layout: Layout) -> None:
    """The tokenizer files of one family's published layout."""
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
        _write_json(folder / "added_tokens.json", {text: first + place for place, text in enumerate(added)})
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
    """Trains the tokenizer and writes its files."""
    parser = argparse.ArgumentParser(prog="python -m unmask.training.vocabulary", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=get_args(Layout), default="llada")
    options = parser.parse_args()
    write(train(), options.folder, options.layout)
    print(f"wrote a vocabulary of {SIZE} pieces to {options.folder}")


if __name__ == "__main__":
    main()
