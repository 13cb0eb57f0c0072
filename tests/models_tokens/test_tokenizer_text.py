"""Text to ids and back."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from tests.raises import raises_field
from unmask.models.text.tokens import Tokenizer

Edit = Callable[..., Path]
RELAXED = settings(max_examples=150, deadline=None)


@RELAXED
@given(text=st.text())
@example("")
@example("a\r\n\u2028 \x00\x85\xa0")
@example("👩‍👩‍👧 e\u0301 \ufffd")
def test_llada_text_survives_the_round_trip(llada: Tokenizer, text: str) -> None:
    assert llada.decode(llada.encode(text), skip_special=False) == text


@RELAXED
@given(text=st.text())
@example("e\u0301 \u212b \u1100\u1161")
def test_dream_text_survives_the_round_trip_in_composed_form(dream: Tokenizer, text: str) -> None:
    assert dream.decode(dream.encode(text), skip_special=False) == unicodedata.normalize("NFC", text)


@RELAXED
@given(texts=st.lists(st.text(), max_size=5))
def test_a_batch_encodes_as_its_texts_do(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


@RELAXED
@given(text=st.text())
def test_vocab_and_merges_give_the_ids_of_the_model_that_wrote_them(
    dream: Tokenizer, qwen2: Backend, text: str
) -> None:
    assert dream.encode(text) == qwen2.encode(text, add_special_tokens=False).ids


def test_a_folder_with_tokenizer_json_gives_the_ids_of_vocab_and_merges(
    dream: Tokenizer, dream_folder: Path, qwen2: Backend, tmp_path: Path
) -> None:
    for path in dream_folder.iterdir():
        if path.suffix == ".json" and path.name != "vocab.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    qwen2.save(str(tmp_path / "tokenizer.json"))
    other = Tokenizer.from_folder(tmp_path)
    texts = ["It doesn't cost 1,024 €.\n\n  e\u0301漢🙂", "<|im_start|>user\nHi<|im_end|><tool_call>"]
    assert other.encode_batch(texts) == dream.encode_batch(texts)
    assert other.special == dream.special


def test_qwen2_splits_digits_one_by_one_and_keeps_contractions_whole(dream: Tokenizer) -> None:
    pieces = [dream.decode([token_id]) for token_id in dream.encode("it doesn't 17 23")]
    assert "".join(pieces) == "it doesn't 17 23"
    assert [piece for piece in pieces if piece.isdigit()] == ["1", "7", "2", "3"]


def test_special_tokens_in_a_text_are_recognised_and_none_are_added(llada: Tokenizer) -> None:
    ids = llada.encode("The<|eot_id|>dog")
    assert [token_id for token_id in ids if token_id in llada.special.ends] == [
        llada.token_to_id("<|eot_id|>")
    ]
    assert llada.encode("") == []
    assert llada.decode(ids) == "Thedog"
    assert llada.decode(ids, skip_special=False) == "The<|eot_id|>dog"


def test_added_tokens_that_are_not_special_stay_in_the_text(dream: Tokenizer) -> None:
    ids = dream.encode("<tool_call>fox</tool_call><|im_end|>")
    assert ids[0] == dream.token_to_id("<tool_call>")
    assert dream.decode(ids) == "<tool_call>fox</tool_call>"


def test_the_text_limits_of_a_published_tokenizer_json_are_not_applied(
    llada_folder: Path, edited: Edit
) -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    folder = edited(llada_folder, "tokenizer", truncation=truncation)
    assert len(Tokenizer.from_folder(folder).encode("The quick brown fox")) > 2


def test_tokens_and_ids_are_each_others_inverse(tokenizer: Tokenizer) -> None:
    mask = tokenizer.special.mask
    assert tokenizer.token_to_id(tokenizer.id_to_token(mask) or "") == mask
    assert tokenizer.token_to_id("no such token") is None
    assert tokenizer.id_to_token(100_000) is None
    assert tokenizer.id_to_token(-1) is None


def test_ids_beyond_the_known_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([*tokenizer.encode("dog"), 100_000]) == "dog"


@pytest.mark.parametrize(
    ("text", "value"),
    [(None, None), ("ab\ud800", "\ud800")],
)
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, text: str, value: object) -> None:
    with raises_field("text", value):
        tokenizer.encode(text)


def test_one_string_is_no_batch(tokenizer: Tokenizer) -> None:
    with raises_field("texts", "abc", "encode"):
        tokenizer.encode_batch("abc")


def test_a_negative_id_is_refused(tokenizer: Tokenizer) -> None:
    with raises_field("token_ids", -1):
        tokenizer.decode([3, -1])
