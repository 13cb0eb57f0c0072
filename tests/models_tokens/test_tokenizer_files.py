"""Ids come out as the checkpoint's files say, or an error says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unmask.models.text.tokens import SpecialIds, Tokenizer

Edit = Callable[..., Path]


def read(folder: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return value


def declared(folder: Path) -> dict[str, int]:
    """Added tokens with the ids that tokenizer_config.json gives them."""
    entries = read(folder, "tokenizer_config.json")["added_tokens_decoder"]
    return {entry["content"]: int(token_id) for token_id, entry in entries.items()}


def test_llada_special_ids_are_those_of_its_files(llada: Tokenizer, llada_folder: Path) -> None:
    at = declared(llada_folder)
    eos, eot = at["<|endoftext|>"], at["<|eot_id|>"]
    assert llada.special == SpecialIds(at["<|mdm_mask|>"], eos, eos, at["<|startoftext|>"], (eos, eot))


def test_dream_special_ids_are_those_of_its_files(dream: Tokenizer, dream_folder: Path) -> None:
    at = declared(dream_folder)
    eos, turn = at["<|endoftext|>"], at["<|im_end|>"]
    assert dream.special == SpecialIds(at["<|mask|>"], eos, eos, at["<|beginoftext|>"], (eos, turn))


def test_every_added_token_has_its_declared_id(dream: Tokenizer, dream_folder: Path) -> None:
    for text, token_id in read(dream_folder, "added_tokens.json").items():
        assert dream.encode(text) == [token_id]


def test_added_tokens_may_leave_gaps(dream_folder: Path, edited: Edit) -> None:
    entries = read(dream_folder, "tokenizer_config.json")["added_tokens_decoder"]
    last = max(map(int, entries))
    entries = entries | {
        str(last + 9): {"content": "<|far|>", "special": True},
        str(last + 5): {"content": "<|near|>"},
    }
    tokenizer = Tokenizer.from_folder(edited(dream_folder, "tokenizer_config", added_tokens_decoder=entries))
    assert tokenizer.encode("a<|far|><|near|>")[1:] == [last + 9, last + 5]
    assert tokenizer.decode([last + 9], skip_special=False) == "<|far|>"


def test_a_token_missing_from_tokenizer_json_is_added_at_its_id(llada_folder: Path, edited: Edit) -> None:
    last = max(declared(llada_folder).values())
    tokenizer = Tokenizer.from_folder(edited(llada_folder, "added_tokens", **{"<late>": last + 3}))
    assert tokenizer.encode("<late>") == [last + 3]
    assert tokenizer.decode([last + 3]) == "<late>"


def test_added_tokens_json_alone_is_enough(dream_folder: Path, dream: Tokenizer, edited: Edit) -> None:
    folder = edited(dream_folder, "tokenizer_config", added_tokens_decoder=...)
    other = Tokenizer.from_folder(folder)
    assert other.special == dream.special
    assert other.encode("<|im_end|>") == [dream.token_to_id("<|im_end|>")]
    assert other.decode(other.encode("a<|mask|>")) == "a", "the named tokens are special"


def test_special_tokens_map_fills_in_for_the_configuration(
    dream_folder: Path, dream: Tokenizer, edited: Edit
) -> None:
    folder = edited(
        dream_folder, "tokenizer_config", bos_token=..., eos_token=None, pad_token=..., mask_token=...
    )
    assert Tokenizer.from_folder(folder).special == dream.special


def test_the_mask_comes_from_the_model_configuration_first(dream_folder: Path, edited: Edit) -> None:
    other = declared(dream_folder)["<tool_call>"]
    assert Tokenizer.from_folder(edited(dream_folder, "config", mask_token_id=other)).special.mask == other


def test_the_mask_comes_from_the_tokenizer_where_the_model_is_silent(
    dream_folder: Path, dream: Tokenizer, edited: Edit
) -> None:
    assert Tokenizer.from_folder(edited(dream_folder, "config", mask_token_id=...)).special == dream.special


def test_every_declared_end_counts_once(llada_folder: Path, llada: Tokenizer, edited: Edit) -> None:
    cls = llada.token_to_id("[CLS]")
    folder = edited(llada_folder, "generation_config", eos_token_id=[llada.special.eos, cls])
    assert Tokenizer.from_folder(folder).special.ends == (llada.special.eos, cls, llada.special.ends[-1])


def test_a_template_without_end_token_adds_no_end(llada_folder: Path, edited: Edit) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokenizer = Tokenizer.from_folder(edited(llada_folder, "tokenizer_config", chat_template=template))
    assert tokenizer.special.ends == (tokenizer.special.eos,)


def test_the_end_of_a_turn_may_stand_on_its_own_line(llada_folder: Path, edited: Edit) -> None:
    template = "{% for m in messages %}{{ m.content }}\n\n</role>\n{% endfor %}"
    tokenizer = Tokenizer.from_folder(edited(llada_folder, "tokenizer_config", chat_template=template))
    assert tokenizer.special.ends == (tokenizer.special.eos, tokenizer.token_to_id("</role>"))


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        (
            "added_tokens",
            {"<|im_end|>": 300},
            r"token '<\|im_end\|>' is 300 in added_tokens.json, but \d+ in",
        ),
        ("added_tokens", {"<new>": 5}, "id 5 is '<new>' in added_tokens.json, but .* elsewhere"),
        ("added_tokens", {"<new>": -1}, "'<new>' in added_tokens.json has the impossible id -1"),
        ("added_tokens", {"<new>": "12"}, "has the impossible id '12'"),
        ("added_tokens", {"<new>": 10_000}, "'<new>' has id 10000 .* vocab_size in config.json is"),
        (
            "tokenizer_config",
            {"added_tokens_decoder": {"x": {"content": "<a>"}}},
            "'<a>' .* has the impossible id 'x'",
        ),
        (
            "tokenizer_config",
            {"added_tokens_decoder": {"499": {}}},
            "in tokenizer_config.json has no text, but {}",
        ),
        ("tokenizer_config", {"added_tokens_decoder": {"499": 3}}, "has no text, but 3"),
        ("vocab", {"x y": "z"}, "vocabulary of .* has ids"),
        ("vocab", {"x y": 7}, "gives one id to two tokens"),
        ("tokenizer_config", {"added_tokens_decoder": [3]}, "must map ids to tokens, got"),
        ("tokenizer_config", {"sep_token": "<sep>"}, "special token '<sep>' has no id in"),
        ("tokenizer_config", {"tokenizer_class": "GPT2Tokenizer"}, "tokenizer_class is 'GPT2Tokenizer', but"),
        ("config", {"eos_token_id": 10_000}, "'eos_token_id' has id 10000 .* vocab_size in config.json is"),
        ("config", {"pad_token_id": -1}, "config.json: pad_token_id must be a token id, got -1"),
        (
            "generation_config",
            {"eos_token_id": [1, "2"]},
            "generation_config.json: eos_token_id .* got '2'",
        ),
    ],
)
def test_clashing_and_impossible_ids_are_refused(
    dream_folder: Path, edited: Edit, name: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Tokenizer.from_folder(edited(dream_folder, name, **changes))


def test_no_mask_token_anywhere_is_an_error(llada_folder: Path, edited: Edit) -> None:
    with pytest.raises(ValueError, match="names no mask token"):
        Tokenizer.from_folder(edited(llada_folder, "config", mask_token_id=None))


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_a_folder_without_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected tokenizer\.json, or vocab\.json and merges\.txt"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer_config.json", "{", "tokenizer_config.json is not valid JSON"),
        ("config.json", "[]", "must hold a JSON object, got list"),
        ("tokenizer.json", "{}", "has no model.vocab"),
        ("tokenizer.json", '{"model": {"vocab": "abc"}}', "must map tokens to ids"),
        (
            "tokenizer.json",
            '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
            "do not fit together",
        ),
    ],
)
def test_a_damaged_file_is_a_sentence(
    llada_folder: Path, edited: Edit, name: str, content: str, sentence: str
) -> None:
    folder = edited(llada_folder, "generation_config")
    (folder / name).write_text(content, encoding="utf-8")
    if name == "tokenizer.json":
        for other in ("tokenizer_config.json", "special_tokens_map.json"):
            (folder / other).unlink()
    with pytest.raises(ValueError, match=sentence):
        Tokenizer.from_folder(folder)


def test_a_file_that_is_not_text_is_a_sentence(dream_folder: Path, edited: Edit) -> None:
    folder = edited(dream_folder, "generation_config")
    (folder / "merges.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"merges\.txt is not UTF-8 text"):
        Tokenizer.from_folder(folder)


def test_a_template_that_drops_answers_adds_no_end(llada_folder: Path, edited: Edit) -> None:
    tokenizer = Tokenizer.from_folder(edited(llada_folder, "tokenizer_config", chat_template="<|eot_id|>x"))
    assert tokenizer.special.ends == (tokenizer.special.eos,)


def test_merges_that_name_unknown_tokens_are_a_sentence(dream_folder: Path, edited: Edit) -> None:
    folder = edited(dream_folder, "generation_config")
    with (folder / "merges.txt").open("a", encoding="utf-8") as merges:
        merges.write("\u4e00 \u4e01\n")
    with pytest.raises(ValueError, match="do not fit together"):
        Tokenizer.from_folder(folder)
