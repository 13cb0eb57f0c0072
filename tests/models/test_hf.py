"""Hugging Face masked LMs behind the same interface, on tiny random ones built in memory."""

from __future__ import annotations

import pytest
import torch

from unmask.cache import BlockCache
from unmask.models.hf import HuggingFaceLM, load_hf

from .goldens import TOLERANCE, left_pad

transformers = pytest.importorskip("transformers")
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


def test_a_saved_model_loads_with_the_ids_of_its_tokenizer(tmp_path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    bert().save_pretrained(tmp_path)
    model = load_hf(tmp_path, device="cpu", dtype=torch.bfloat16)
    assert (model.info.mask_id, model.info.eos_ids, model.info.pad_id) == (4, (3,), 0)
    assert model(torch.arange(5)[None], None, slice(2, 4), None).dtype == torch.bfloat16
