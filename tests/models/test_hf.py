"""Hugging Face masked LMs behind the same interface, on tiny random ones built in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import unmask
from tests.raises import raises_field
from unmask.decoding.cache import BlockCache
from unmask.models.hf import HuggingFaceLM, load_hf

from .goldens import TOLERANCE, left_pad

transformers = pytest.importorskip("transformers")
# older transformers import a part of torch that newer torch calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def bert() -> torch.nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


def modernbert() -> torch.nn.Module:
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    config = transformers.ModernBertConfig(**SIZES, **ids, local_attention=8, reference_compile=False)
    return transformers.ModernBertForMaskedLM(config)


def roberta() -> torch.nn.Module:
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES | {"pad_token_id": 1}))


@pytest.fixture(params=[bert, modernbert, roberta])
def wrapped(request: pytest.FixtureRequest) -> HuggingFaceLM:
    torch.manual_seed(0)
    return HuggingFaceLM(request.param().requires_grad_(False), mask_id=4, eos_ids=(3,))


def test_info_comes_from_the_config_and_the_ids_given(wrapped: HuggingFaceLM) -> None:
    info = wrapped.info
    assert (info.vocab_size, info.mask_id, info.eos_ids, info.max_length) == (96, 4, (3,), 64)
    assert info.pad_id == wrapped.model.config.pad_token_id


def test_logits_are_the_models_own_cut_to_the_window(wrapped: HuggingFaceLM) -> None:
    tokens = torch.randint(5, 96, (2, 20))
    expected = wrapped.model(input_ids=tokens).logits[:, 6:11]
    torch.testing.assert_close(wrapped(tokens, None, slice(6, 11), None), expected, atol=1e-5, rtol=0.0)


def test_a_left_padded_row_predicts_what_it_predicts_alone(wrapped: HuggingFaceLM) -> None:
    rows = [torch.randint(5, 96, (length,)) for length in (3, 11, 20)]
    tokens, attend = left_pad(rows, wrapped.info.pad_id)
    logits = wrapped(tokens, attend, slice(18, 20), None)
    for row, together in zip(rows, logits, strict=True):
        [alone] = wrapped(row[None], None, slice(len(row) - 2, len(row)), None)
        torch.testing.assert_close(together, alone, atol=TOLERANCE, rtol=0.0)


def test_a_cache_is_refused(wrapped: HuggingFaceLM) -> None:
    with pytest.raises(ValueError, match="cannot reuse keys and values; use cache=None"):
        wrapped(torch.zeros(1, 4, dtype=torch.int64), None, slice(0, 4), BlockCache())


def write_bert(folder: Path, **settings: str) -> Path:
    """A folder with a tiny BERT and a WordPiece tokenizer that names each of its ids."""
    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s"]
    words += [f"word{index}" for index in range(SIZES["vocab_size"] - len(words))]
    backend = Backend(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    special = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), words, strict=False)
    )
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special, **settings)
    made.save_pretrained(folder)
    bert().save_pretrained(folder)
    return folder


def test_a_saved_model_loads_with_the_ids_of_its_tokenizer(tmp_path) -> None:
    model = load_hf(write_bert(tmp_path), device="cpu", dtype=torch.bfloat16)
    assert (model.info.mask_id, model.info.eos_ids, model.info.pad_id) == (4, (3,), 0)
    assert model(torch.arange(5)[None], None, slice(2, 4), None).dtype == torch.bfloat16


def test_its_tokenizer_reads_and_writes_text(tmp_path) -> None:
    tokenizer = load_hf(write_bert(tmp_path), device="cpu").tokenizer
    assert (tokenizer.special.bos, tokenizer.special.pad) == (2, 0)
    assert tokenizer.encode("[CLS] the cats") == [2, 5, 6, 8]
    assert tokenizer.decode([2, 5, 6, 8]) == "the cats"
    assert tokenizer.decode([2, 5], skip_special=False) == "[CLS] the"


def test_text_goes_in_and_comes_out(tmp_path) -> None:
    model = load_hf(write_bert(tmp_path), device="cpu")
    config = unmask.GenerationConfig(max_new_tokens=12, end_tokens="suppress")
    answers = unmask.generate(model, ["the cat [..]", "the"], config=config)
    assert answers[0] == unmask.generate(model, ["the cat [..]"], config=config)[0]
    for answer in answers:
        assert answer.text == model.tokenizer.decode(answer.token_ids)
        assert len(answer.token_ids) == 12
    chunks = list(unmask.stream(model, "the cat [..]", config=config))
    assert "".join(chunk.text for chunk in chunks) == answers[0].text
    filled = unmask.infill(model, "the [[gap 3]] sat")
    assert filled.text.startswith("the")


def test_a_chat_needs_a_template(tmp_path) -> None:
    chat = [{"role": "user", "content": "the cat"}]
    plain = load_hf(write_bert(tmp_path / "plain"), device="cpu")
    with raises_field("messages", chat, "pass a plain prompt"):
        unmask.generate(plain, [chat])
    template = "{{ cls_token }}{% for message in messages %}{{ message.content }}{{ sep_token }}{% endfor %}"
    written = write_bert(tmp_path / "chat", chat_template=template)
    assert load_hf(written, device="cpu").tokenizer.chat(chat) == [2, 5, 6, 3]
