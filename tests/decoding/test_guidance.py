"""Classifier-free guidance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.toy import Toy
from unmask import Base, Guided, Options, blank, decode, plan
from unmask.types import ModelInfo


class Count:
    """Two columns of logits that say how many tokens of the row are given, and how many rows came in."""

    info = ModelInfo(vocab_size=2, mask_id=0)

    def __init__(self):
        self.seen = []

    def __call__(self, tokens, attend, window, cache):
        self.seen.append((tokens.clone(), attend))
        given = (tokens != 0).sum(-1).float()
        width = window.stop - window.start
        return torch.stack([given, given * 10], dim=-1)[:, None].expand(-1, width, -1).clone()


class HalfBlind(Count):
    """The same, but the blind row gets a special value for token 0."""

    def __init__(self, value: float):
        super().__init__()
        self.value = value

    def __call__(self, tokens, attend, window, cache):
        logits = super().__call__(tokens, attend, window, cache)
        logits[1, :, 0] = self.value
        return logits


def test_guidance_is_u_plus_scale_plus_one_times_c_minus_u():
    model, canvas = Count(), blank([[5, 6, 7]], 2, mask_id=0, pad_id=9)
    guided = Guided.on(model, canvas, 1.5)
    logits = guided(canvas.tokens, None, slice(3, 5), None)
    # c = (3, 30), u = (0, 0)
    assert logits.tolist() == [[[7.5, 75.0], [7.5, 75.0]]]
    assert guided.info == replace(model.info, separable=False)


def test_only_what_the_canvas_gave_at_the_start_is_hidden():
    model, canvas = Count(), blank([[5, 6]], 3, mask_id=0, pad_id=9, pins={2: 4})
    guided = Guided.on(model, canvas, 1.0)
    later = canvas.commit(slice(2, 5), torch.tensor([[True, False, False]]), torch.tensor([[8, 8, 8]]))
    guided(later.tokens, None, slice(2, 5), None)
    (tokens, attend), *_ = model.seen
    assert tokens.tolist() == [[5, 6, 8, 0, 4], [0, 0, 8, 0, 0]]
    assert attend is None


def test_the_blind_rows_keep_the_padding_of_their_row():
    model, canvas = Count(), blank([[5, 6], [7]], 1, mask_id=0, pad_id=9)
    Guided.on(model, canvas, 1.0)(canvas.tokens, canvas.attend, slice(2, 3), None)
    _, attend = model.seen[0]
    assert attend.tolist() == canvas.attend.tolist() * 2


def test_no_guidance_decodes_as_the_model_alone():
    model, canvas = Toy(eos_ids=()), blank([[2, 3], [4]], 6, mask_id=0, pad_id=0)
    cut = plan(canvas.start, 6, steps=6)
    plain = decode(model, canvas, Base(), cut)
    guided = decode(Guided.on(model, canvas, 0.0), canvas, Base(), cut)
    assert torch.equal(plain.tokens, guided.tokens)


@pytest.mark.parametrize("block_length", [None, 2])
def test_a_guided_batch_equals_guided_singles(block_length):
    model, prompts = Toy(seed=4), [[2, 3, 5], [4], [6, 7]]

    def guided(rows):
        canvas = blank(rows, 6, mask_id=0, pad_id=0)
        cut = plan(canvas.start, 6, steps=7, block_length=block_length)
        return decode(Guided.on(model, canvas, 2.0), canvas, Base(), cut, Options(stop_at_eos=False))

    together = guided(prompts).generated.tolist()
    assert together == [guided([prompt]).generated[0].tolist() for prompt in prompts]


def test_guidance_changes_what_is_decoded():
    model, canvas = Toy(seed=4, eos_ids=(), drift=6.0), blank([[2, 3]], 8, mask_id=0, pad_id=0)
    cut = plan(2, 8, steps=8)
    plain = decode(model, canvas, Base(), cut)
    assert not torch.equal(plain.tokens, decode(Guided.on(model, canvas, 4.0), canvas, Base(), cut).tokens)


def test_a_token_that_both_sides_rule_out_stays_ruled_out():
    model, canvas = Toy(holes=True, eos_ids=()), blank([[2]], 6, mask_id=0, pad_id=0)
    result = decode(Guided.on(model, canvas, 1.0), canvas, Base(), plan(1, 6, steps=6))
    assert not (result.generated == 0).any()


def test_a_token_that_only_the_blind_side_rules_out_keeps_the_logit_of_the_seeing_side():
    model, canvas = HalfBlind(-torch.inf), blank([[5]], 1, mask_id=0, pad_id=9)
    assert Guided.on(model, canvas, 3.0)(canvas.tokens, None, slice(1, 2), None).tolist() == [[[1.0, 40.0]]]


def test_a_nan_of_the_blind_side_is_not_hidden():
    model, canvas = HalfBlind(torch.nan), blank([[5]], 1, mask_id=0, pad_id=9)
    assert Guided.on(model, canvas, 3.0)(canvas.tokens, None, slice(1, 2), None).isnan().any()
