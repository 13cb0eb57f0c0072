"""Logits that are made again for a few tokens, instead of being kept, change no token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import unmask
import unmask.decoding.executor
from tests.conftest import GOLDENS
from unmask import LESS, Options, Selection, blank, decode, load, plan
from unmask.fast.executor import maybe_compile as fused
from unmask.models.trunk import Trunk
from unmask.samplers import signals
from unmask.types import HiddenStates, Needs

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SURE = LESS(min_confidence=0.05, max_jsd=0.3, top_k=4)  # random weights are never sure


class Watching(LESS):
    """Notes whether it was given full logits."""

    seen: list[bool] = []  # noqa: RUF012

    def decide(self, obs):
        self.seen.append(obs.now.logits is not None)
        return super().decide(obs)


@pytest.fixture
def seen(monkeypatch) -> list[bool]:
    noted: list[bool] = []
    monkeypatch.setattr(Watching, "seen", noted)
    return noted


def tiny(family: str) -> Trunk:
    return load(GOLDENS / f"{family}_tiny", dtype="float32", device="cpu")


def run(model: Any, block_length: int | None = None, options: Options | None = None, sampler: LESS = SURE):
    canvas = blank(PROMPTS, 16, mask_id=model.info.mask_id, pad_id=model.info.pad_id)
    cut = plan(canvas.start, 16, steps=16, block_length=block_length)
    return decode(model, canvas, sampler, cut, options or Options(min_new_tokens=4))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("block_length", [None, 8])
@pytest.mark.parametrize("most", [1, 1 << 28])
def test_recalled_logits_give_the_tokens_of_kept_ones(monkeypatch, family, block_length, most):
    monkeypatch.setattr(unmask.decoding.executor, "MAX_LOGITS", most)
    recalled = run(tiny(family), block_length)
    monkeypatch.setattr(Trunk, "head_weight", None)
    kept = run(tiny(family), block_length)
    assert torch.equal(recalled.tokens, kept.tokens)
    assert recalled.steps.tolist() == kept.steps.tolist()
    assert kept.accepted.sum() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, some tens
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_compiled_decision_recalls_the_same(monkeypatch, family):
    recalled = run(unmask.compile(tiny(family), bucket=8))
    monkeypatch.setattr(Trunk, "head_weight", None)
    assert torch.equal(recalled.tokens, run(tiny(family)).tokens)


def test_logits_are_recalled_where_few_are_asked_for_and_kept_where_all_may_be(seen):
    run(tiny("llada"), sampler=Watching(top_k=4))
    assert not any(seen)
    seen.clear()
    run(tiny("llada"), options=Options(selection=Selection(temperature=0.5)), sampler=Watching(top_k=4))
    run(tiny("llada"), sampler=Watching(top_k=64))  # as many numbers as the vocabulary has
    assert all(seen)


def test_a_model_with_logits_of_its_own_is_asked_for_them(seen):
    class Filtered(type(tiny("llada"))):
        head_weight = None

        def logits(self, states):
            return super().logits(states).index_fill(-1, torch.arange(20, 512), -torch.inf)

    class Wrapper:
        def __init__(self, model):
            self.model = model

        def __getattr__(self, name):
            return getattr(self.model, name)

        def __call__(self, *given):
            return self.model(*given).index_fill(-1, torch.arange(20, 512), -torch.inf)

    model = tiny("llada")
    subclass = tiny("llada")
    subclass.__class__ = Filtered
    for own in (subclass, Wrapper(model)):
        assert run(own, sampler=Watching(top_k=4)).generated.max() < 20
    assert all(seen)


def test_a_sampler_that_reads_more_than_it_asked_for_is_told_what_to_ask(seen):
    class Greedy(LESS):
        def decide(self, obs):
            signals.entropy(obs.now)
            return super().decide(obs)

    class Asking(Greedy):
        @property
        def needs(self):
            return Needs(top_k=4, lookback=1, gather_logits=True, logits=True)

    with pytest.raises(ValueError, match=r"asked for a few; ask for them with Needs\(logits=True\)"):
        run(tiny("llada"), sampler=Greedy(top_k=4))
    run(tiny("llada"), sampler=Asking(top_k=4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, some tens
@pytest.mark.parametrize("device", DEVICES)
def test_recalled_logits_are_rounded_when_compiled_too(device):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 8, 64, generator=generator).bfloat16().to(device)
    weight = torch.randn(300, 64, generator=generator).bfloat16().to(device)
    ids = torch.randint(300, (2, 8, 4), generator=generator).to(device)
    expected = torch.nn.functional.linear(states, weight).float().gather(-1, ids)
    said = fused(recalled, when=True)(HiddenStates(states, weight), ids)
    assert (said == expected).float().mean() > 0.95  # sums of another order may round to a neighbour


def recalled(hidden: HiddenStates, ids: torch.Tensor) -> torch.Tensor:
    return hidden.logits_of(ids)
