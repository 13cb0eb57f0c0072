"""Samplers that ask for shadow columns or attention maps see what a forward of the model sees."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import GOLDENS
from tests.raises import raises_field
from tests.serving.test_engine import TextToy
from tests.toy import COUNTS, Scripted, Toy, run, trail
from unmask import WINO, BlockCache, Dawn, Guided, blank, decode, plan
from unmask.models import load
from unmask.models.trunk import Trunk
from unmask.serving import Engine
from unmask.types import Decision, Needs, Observation

FAMILIES = ["llada_tiny", "dream_tiny"]
WINDOW = slice(5, 11)
CLOSE = {"rtol": 1e-5, "atol": 1e-4}  # how float32 rounds depends on the CPU and on the columns


def tiny(family: str, *, layers: int | None = None) -> Trunk:
    model = load(GOLDENS / family, device="cpu", dtype="float32")
    model.layers = model.layers[:layers]
    return model


def some_canvas(model: Trunk) -> torch.Tensor:
    """A row of 14 tokens with masks inside and behind the window."""
    tokens = torch.tensor([[7, 42, 99, 5, 8, 31, 0, 12, 0, 77, 0, 0, 0, 23]])
    return tokens.masked_fill(tokens == 0, model.info.mask_id)


def padded(tokens: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The row with padding on its left, and which columns are real."""
    canvas = torch.nn.functional.pad(tokens, (by, 0), value=3)
    return canvas, (torch.arange(canvas.shape[1]) >= by)[None]


@torch.no_grad()
def shadow_logits(model: Trunk, tokens, attend=None, window=WINDOW):
    return [model.logits(states) for states in model.shadow_states(tokens, attend, window)]


# shadow columns


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shadow_does_not_attend_to_the_column_that_it_predicts(family):
    model = tiny(family, layers=1)  # deeper layers hear of a token through other columns
    tokens = some_canvas(model)
    own, shadow = shadow_logits(model, tokens)
    for offset in range(WINDOW.stop - WINDOW.start):
        other = tokens.clone()
        other[0, WINDOW.start + offset] = 200
        own_after, after = shadow_logits(model, other)
        assert torch.equal(shadow[:, offset], after[:, offset])
        others = torch.arange(shadow.shape[1]) != offset
        assert ((shadow - after).abs().amax(-1)[0, others] > 1e-4).all()
        assert ((own - own_after).abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("column", [5, 7, 9])
def test_the_shadow_of_one_column_predicts_as_if_it_were_masked(column):
    model, window = tiny("llada_tiny", layers=1), slice(column, column + 1)
    tokens = some_canvas(model)
    _, shadow = shadow_logits(model, tokens, window=window)
    tokens[:, window] = model.info.mask_id
    with torch.no_grad():
        torch.testing.assert_close(shadow, model(tokens, None, window, None), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", [0, 3])
@pytest.mark.parametrize("window", [slice(0, 14), slice(1, 6), WINDOW], ids=str)
def test_nobody_sees_the_shadow_and_padding_is_no_token(family, by, window):
    model = tiny(family)
    tokens = some_canvas(model)
    alone = shadow_logits(model, tokens, window=window)
    with torch.no_grad():
        torch.testing.assert_close(alone[0], model(tokens, None, window, None), **CLOSE)
    canvas, attend = padded(tokens, by)
    moved = slice(window.start + by, window.stop + by)
    for ours, expected in zip(shadow_logits(model, canvas, attend, moved), alone, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


# attention maps


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [1, 2, 99])
def test_attention_adds_up_and_does_not_see_padding(family, layers):
    model = tiny(family)
    tokens = some_canvas(model)
    states, weights = model.attention_states(tokens, None, layers)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 14), **CLOSE)
    with torch.no_grad():
        expected = model(tokens, None, slice(0, 14), None)
        torch.testing.assert_close(model.logits(states), expected, **CLOSE)
    canvas, attend = padded(tokens, 3)
    more, wide = model.attention_states(canvas, attend, layers)
    assert (wide[..., :3] == 0).all()
    torch.testing.assert_close(wide[:, 3:, 3:], weights, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(more[:, 3:], states, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sampler_sees_the_confidence_of_every_column(family):
    model, seen = tiny(family), []

    class Watching(Dawn):
        def decide(self, obs):
            seen.append(obs.attention)
            return super().decide(obs)

    canvas = blank([[7, 42, 99], [5]], 6, mask_id=model.info.mask_id, pad_id=3)
    decode(model, canvas, Watching(layers=2), plan(3, 6, steps=6, block_length=3))
    first = seen[0]
    logits = model(canvas.tokens, canvas.attend, slice(0, 9), None).detach()
    logits[..., model.info.mask_id] = -torch.inf
    real = canvas.attend
    torch.testing.assert_close(first.confidence[real], logits.softmax(-1).amax(-1)[real], **CLOSE)
    assert torch.equal(first.real, real)
    assert torch.equal(first.filled, real & (canvas.tokens != model.info.mask_id))
    assert {each.first for each in seen} == {3, 6}


# the loop


@dataclass(frozen=True)
class Curious:
    """Commits where the shadow or the attention says so, or else the first position."""

    shadow: bool = False
    attention: int = 0
    span: bool = False
    revoke: bool = False
    lookback: int = 0

    @property
    def needs(self) -> Needs:
        return Needs(
            shadow=self.shadow,
            attention=self.attention,
            span=self.span,
            revoke=self.revoke,
            lookback=self.lookback,
        )

    def decide(self, obs: Observation) -> Decision:
        if self.shadow:
            assert all(before.shadow is not None for before in obs.past)
            liked = obs.shadow.top1 == obs.now.top1
        else:
            own = slice(obs.attention.first, obs.attention.first + obs.masked.shape[1])
            liked = obs.attention.weights[:, own].amax(-1) > 0.3
            liked = liked & (obs.attention.confidence[:, own] == obs.now.top_probs[..., 0])
        liked = obs.active & liked & (obs.step % 2 == 0)[:, None]  # now and then an unchanged canvas
        forced = ~liked.any(-1) & (obs.step % 3 == 2)
        first = obs.active & (obs.active.cumsum(-1) == 1)
        return Decision(torch.where(forced[:, None], first, liked), liked, forced)


CURIOUS = [
    Curious(shadow=True),
    Curious(shadow=True, span=True, lookback=2),
    Curious(attention=1),
    Curious(attention=2, span=True, lookback=1),
]


@settings(max_examples=30)
@given(
    sampler=st.sampled_from(CURIOUS),
    length=st.integers(1, 10),
    block=st.integers(1, 10),
    seed=st.integers(0, 99),
    reuse=st.booleans(),
)
def test_rows_are_as_alone_whichever_rows_run(sampler, length, block, seed, reuse):
    model, prompts = Toy(seed=seed, drift=0.3), [[2, 3, 4], [5], [6, 7]]
    wanted = {"length": length, "block_length": min(block, length), "steps": 2 * length, "reuse": reuse}
    together = run(model, sampler, prompts, **wanted)
    for row, prompt in enumerate(prompts):
        alone = run(model, sampler, [prompt], **wanted)
        assert torch.equal(together.generated[row], alone.generated[0])
        assert all(getattr(together, count)[row] == getattr(alone, count)[0] for count in COUNTS)


@pytest.mark.parametrize("length", [1, 7, 24])
def test_wino_fills_at_least_a_column_per_step_on_balance(length):
    for seed in range(6):
        model = Toy(seed=seed, drift=3.0, eos_ids=())
        sampler = WINO(min_confidence=0.1, min_shadow=1.0)
        _, steps = trail(model, sampler, [[2, 3]], length=length)
        for taken, step in enumerate(steps, start=1):
            assert int((step.tokens != model.mask_id).sum()) >= 2 + taken
        assert not any(step.leftover for step in steps)


# refusals


@pytest.mark.parametrize("sampler", [WINO(), Dawn()], ids=str)
def test_a_model_that_cannot_is_refused_before_its_first_forward(sampler):
    model = Scripted(torch.zeros(4, 8))
    with raises_field("sampler", sampler):
        run(model, sampler, [[2]], length=4)
    assert model.at == 0


@pytest.mark.parametrize("sampler", [WINO(), Dawn()], ids=str)
def test_guidance_a_cache_and_the_server_are_refused(sampler):
    model = tiny("llada_tiny")
    canvas = blank([[7, 42]], 4, mask_id=model.info.mask_id, pad_id=3)
    with raises_field("sampler", sampler):
        decode(Guided.on(model, canvas, 0.5), canvas, sampler, plan(2, 4, steps=4))
    cache = BlockCache("block")
    with raises_field("cache", cache):
        decode(model, canvas, sampler, plan(2, 4, steps=4), cache=cache)
    with Engine(TextToy(Toy())) as engine, raises_field("sampler", sampler):
        engine.submit([2, 3], sampler)


def test_shadow_columns_and_attention_maps_do_not_go_together():
    with raises_field("Curious.needs.attention", 2):
        run(Toy(), Curious(shadow=True, attention=2), [[2]])


def test_a_sampler_that_did_not_ask_is_told_how_to():
    class Silent(Curious):
        needs = Needs()

    for view in ({"shadow": True}, {"attention": 1}):
        with pytest.raises(ValueError, match="Needs"):
            run(Toy(), Silent(**view), [[2]])
