"""Logits that are made again for a few tokens, instead of being kept, change no token."""

from __future__ import annotations

import pytest
import torch

import unmask
import unmask.loop
from tests.conftest import GOLDENS
from unmask import LESS, Options, Selection, blank, decode, load, plan

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
SURE = LESS(min_confidence=0.05, max_jsd=0.3)  # random weights are never sure


def run(
    family: str,
    block_length: int | None = None,
    options: Options | None = None,
    sampler: LESS = SURE,
    *,
    compiled: bool = False,
):
    model = load(GOLDENS / f"{family}_tiny", dtype="float32")
    if compiled:
        unmask.compile(model, bucket=8)
    canvas = blank(PROMPTS, 16, mask_id=model.info.mask_id, pad_id=model.info.pad_id)
    cut = plan(canvas.start, 16, steps=16, block_length=block_length)
    return decode(model, canvas, sampler, cut, options or Options(min_new_tokens=4))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("block_length", [None, 8])
@pytest.mark.parametrize("most", [1, 1 << 28])
def test_recalled_logits_give_the_tokens_of_kept_ones(monkeypatch, family, block_length, most):
    kept = run(family, block_length)
    monkeypatch.setattr(unmask.loop, "LARGE_VOCABULARY", 0)
    monkeypatch.setattr(unmask.loop, "MOST_LOGITS", most)
    recalled = run(family, block_length)
    assert torch.equal(recalled.tokens, kept.tokens)
    assert recalled.steps.tolist() == kept.steps.tolist()
    assert kept.accepted.sum() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, some tens
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_compiled_decision_recalls_the_same(monkeypatch, family):
    kept = run(family)
    monkeypatch.setattr(unmask.loop, "LARGE_VOCABULARY", 0)
    assert torch.equal(run(family, compiled=True).tokens, kept.tokens)


def test_a_large_vocabulary_is_recalled_by_a_sampler_that_asks_for_few(monkeypatch):
    seen = []

    class Watching(LESS):
        def decide(self, obs):
            seen.append(obs.now.logits is None)
            return super().decide(obs)

    monkeypatch.setattr(unmask.loop, "LARGE_VOCABULARY", 0)
    run("llada", sampler=Watching())
    assert all(seen)
    seen.clear()
    run("llada", options=Options(selection=Selection(temperature=0.5)), sampler=Watching())
    assert not any(seen)
