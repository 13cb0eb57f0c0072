"""The models agree with themselves; tests/conformance compares them with the recorded references."""

from __future__ import annotations

import pytest
import torch

from unmask.models.trunk import Trunk

from .conftest import tiny
from .goldens import TOLERANCE, left_pad


@pytest.mark.parametrize("window", [slice(0, 1), slice(0, 12), slice(5, 9), slice(11, 12)])
def test_a_window_is_a_cut_of_the_whole(model: Trunk, window: slice) -> None:
    tokens = torch.randint(model.info.vocab_size, (2, 12))
    whole = model(tokens, None, slice(0, 12), None)
    torch.testing.assert_close(model(tokens, None, window, None), whole[:, window], atol=1e-5, rtol=1e-5)


def test_a_left_padded_row_predicts_what_it_predicts_alone(model: Trunk) -> None:
    rows = [torch.randint(500, (length,)) for length in (1, 7, 12)]
    tokens, attend = left_pad(rows, model.info.pad_id)
    logits = model(tokens, attend, slice(0, 12), None)
    for row, together in zip(rows, logits, strict=True):
        [alone] = model(row[None], None, slice(0, len(row)), None)
        torch.testing.assert_close(together[-len(row) :], alone, atol=TOLERANCE, rtol=0.0)


def test_what_stands_in_the_padding_does_not_matter(model: Trunk) -> None:
    tokens, attend = left_pad([torch.arange(9), torch.arange(4)], model.info.pad_id)
    other = tokens.masked_fill(~attend, 7)
    logits, again = (model(t, attend, slice(0, 9), None) for t in (tokens, other))
    assert torch.equal(logits[attend], again[attend])


def test_a_row_of_padding_only_gives_finite_logits(model: Trunk) -> None:
    tokens, attend = torch.zeros(2, 6, dtype=torch.int64), torch.tensor([[True] * 6, [False] * 6])
    assert model(tokens, attend, slice(0, 6), None).isfinite().all()


def test_logits_are_as_wide_as_the_embedding() -> None:
    model = tiny("llada_emb_tiny")
    assert model.config["vocab_size"] == 500
    assert model.info.vocab_size == 512
    assert model(torch.zeros(1, 3, dtype=torch.int64), None, slice(0, 3), None).shape == (1, 3, 512)


def test_bfloat16_gives_bfloat16_logits_near_the_float32_ones(model: Trunk) -> None:
    narrow = type(model)(model.config)
    narrow.load_state_dict(model.state_dict())
    narrow.to(torch.bfloat16)
    tokens = torch.arange(32)[None]
    logits, expected = narrow(tokens, None, slice(0, 32), None), model(tokens, None, slice(0, 32), None)
    assert logits.dtype == torch.bfloat16
    assert (logits.float() - expected).abs().mean() < 0.1


def test_the_head_runs_on_the_window_only(family: Trunk) -> None:
    seen = []
    handle = family.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    family(torch.zeros(1, 20, dtype=torch.int64), None, slice(8, 12), None)
    handle.remove()
    assert seen == [4]
