"""Detailed drafts: every step with its signals and candidates, for readers such as the page."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx
import pytest
import torch

import unmask
from tests.serving.conftest import Running, listening, wait_until
from tests.trace.revoking import Tidy
from unmask.describe import field_lines
from unmask.models.trunk import Trunk
from unmask.samplers import GROUPS, LESS, SAMPLERS
from unmask.samplers.wrapper import settings
from unmask.serving import Engine, Job, Snapshot
from unmask.serving.reading import Drafts, reader, settled
from unmask.text.generate import prepare
from unmask.text.prompts import tokenizer_of
from unmask.types import Step

BODY = {"prompt": "the cat", "max_tokens": 12, "stream": True, "drafts": True, "draft_candidates": 4}


def drafts(server: Running, **changes: Any) -> list[dict[str, Any]]:
    """The drafts of an answer."""
    text = server.post("/v1/completions", {**BODY, **changes}).text
    events = [event for event in text.split("\n\n") if event.startswith("event: draft\n")]
    return [json.loads(event.partition("data: ")[2]) for event in events]


def followed(model: Trunk, sampler: str, **changes: Any) -> list[Step]:
    """The steps of the same run, taken alone."""
    config = unmask.GenerationConfig(max_new_tokens=12, **changes)
    return list(prepare(model, ["the cat"], unmask.make_sampler(sampler), config).steps)


@pytest.mark.parametrize("sampler", ["less", "less-paper", "base", "klass", "prophet"])
def test_every_step_is_sent_with_the_signals_of_its_decision(
    server: Running, model: Trunk, sampler: str
) -> None:
    received, steps = drafts(server, sampler=sampler), followed(model, sampler)
    assert [draft["step"] for draft in received] == [step.index for step in steps]
    for draft, step in zip(received, steps, strict=True):
        first = step.tokens.shape[1] - 12
        assert draft["forced"] == bool(step.decision.forced[0])
        assert draft["forward"] == step.forward
        for offset in range(step.window.stop - step.window.start):
            place = draft["positions"][step.window.start + offset - first]
            commit = bool(step.decision.commit[0, offset])
            masked = int(step.tokens[0, step.window.start + offset]) == model.info.mask_id
            assert ("candidates" in place) == (commit or masked)
            if "candidates" in place:
                assert place["committed"] == commit
                assert place["token"] == int(step.drawn[0, offset])
                assert (place["revoked"], place["rewritten"]) == (False, False)
                assert set(step.decision.signals) <= set(place["signals"])
                for name, values in step.decision.signals.items():
                    check_signal(place["signals"][name], values[0, offset])


def check_signal(received: float | bool | None, value: torch.Tensor) -> None:
    if torch.isfinite(value):
        assert received == pytest.approx(float(value), abs=2e-5)
    else:
        assert received is None


def test_candidates_are_the_most_likely_tokens_and_confidence_is_the_first(server: Running) -> None:
    for draft in drafts(server, sampler="entropy-bound"):  # which names no confidence
        for place in draft["positions"]:
            chances = [chance for _, _, chance in place.get("candidates", [])]
            if chances:
                assert len(chances) == 4
                assert chances == sorted(chances, reverse=True)
                assert place["signals"]["confidence"] == chances[0]


def test_a_sampler_without_jsd_gets_one_from_the_second_look_on(server: Running) -> None:
    received = drafts(server, sampler="threshold", block_length="none")
    for before, draft in pairwise(received):
        for was, place in zip(before["positions"], draft["positions"], strict=True):
            if "candidates" in place:
                assert place["signals"]["jsd"] >= 0
                if place["candidates"] == was["candidates"]:
                    assert place["signals"]["jsd"] < 1e-5


def test_the_leftovers_of_a_spent_budget_are_sent_too(server: Running) -> None:
    received = drafts(server, sampler="less-paper", steps=2, block_length="none")
    assert received[-1]["leftover"]
    assert all(place["state"] != "masked" for place in received[-1]["positions"])


def test_a_sampler_may_name_any_signal(model: Trunk) -> None:
    received = read_drafts(model, *finished(model))
    looked_at = [place for place in received[0]["positions"] if "signals" in place]
    assert len(looked_at) == 4
    for place in looked_at:
        assert {"neatness", "fuss", "agrees", "size", "confidence"} <= set(place["signals"])
        assert isinstance(place["signals"]["agrees"], bool)
        assert place["signals"]["size"] == place["token"]


def test_revoked_and_rewritten_positions_are_marked_and_not_final(model: Trunk) -> None:
    job, [*_, last] = finished(model)
    offsets = {"revoke": 1, "rewrite": 2}
    flags = {name: torch.arange(4)[None] == at for name, at in offsets.items()}
    assert last.taken is not None
    tokens = last.tokens.clone()
    tokens[last.window.start + offsets["revoke"]] = model.info.mask_id
    decision = replace(last.taken.decision, commit=torch.zeros(1, 4, dtype=torch.bool), **flags)
    changed = last._replace(
        tokens=tokens, taken=replace(last.taken, decision=decision), revocable=slice(last.window.start, None)
    )
    [draft] = read_drafts(model, job, [changed])
    assert [place["state"] for place in draft["positions"]] == [
        "committed",
        "masked",
        "committed",
        "committed",
    ]
    assert [place.get("revoked") for place in draft["positions"]] == [None, True, False, None]
    assert [place.get("rewritten") for place in draft["positions"]] == [None, False, True, None]


def test_text_that_a_later_step_may_change_is_held_back(model: Trunk) -> None:
    job, [*_, last] = finished(model)
    whole = reader(job.request).read(settled(last, model.info.mask_id))
    assert whole == job.result(0).text
    held = last._replace(revocable=slice(last.window.start + 1, len(last.tokens)))
    text = reader(job.request)
    begin = text.read(settled(held, model.info.mask_id))
    assert whole.startswith(begin)
    assert len(begin) < len(whole)
    assert begin + text.read(settled(last, model.info.mask_id)) == whole


def finished(model: Trunk) -> tuple[Job, list[Snapshot]]:
    """A job of four tokens that is over, and all its snapshots."""
    with Engine(model) as engine:
        config = unmask.GenerationConfig(max_new_tokens=4, end_tokens="suppress")
        job = engine.submit("the cat", Tidy(), config, candidates=3)
        job.result(20)
    return job, list(job.drain_snapshots())


def read_drafts(model: Trunk, job: Job, snapshots: list[Snapshot]) -> list[dict[str, Any]]:
    """The drafts of these snapshots, as a client receives them."""
    drafts = Drafts(job.request, tokenizer_of(model), model.info.eos_ids)
    return [json.loads(json.dumps(drafts.read(snapshot), allow_nan=False)) for snapshot in snapshots]


def test_a_job_with_candidates_keeps_every_step_for_a_reader_that_comes_late(model: Trunk) -> None:
    with Engine(model) as engine:
        config = unmask.GenerationConfig(max_new_tokens=12)
        job = engine.submit("the cat", unmask.LESS(), config, candidates=3)
        plain = engine.submit("the cat", unmask.LESS(), config)
        answer = job.result(20)
        assert plain.result(20).token_ids == answer.token_ids
    kept = list(job.drain_snapshots())
    assert [snapshot.step for snapshot in kept][: answer.steps] == list(range(1, answer.steps + 1))
    assert kept[0].look is not None
    assert [len(best) for best in kept[0].look.candidates] == [3] * 12
    assert list(plain.drain_snapshots()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"draft_candidates": 0}, "draft_candidates"),
        ({"draft_candidates": 17}, "draft_candidates"),
        ({"drafts": False}, "draft_candidates needs stream and drafts"),
        ({"stream": False}, "draft_candidates needs stream and drafts"),
    ],
)
def test_candidates_that_cannot_be_sent_are_refused(
    server: Running, changes: dict[str, Any], sentence: str
) -> None:
    answer = server.post("/v1/completions", {**BODY, **changes})
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]


def test_the_model_lists_the_fields_of_its_samplers(server: Running) -> None:
    facts = server.get("/v1/models/tiny").json()["unmask"]
    assert set(facts["sampler_fields"]) == set(facts["samplers"])
    assert facts["sampler_fields"]["less"]["max_jsd"] == 0.04
    assert facts["sampler_fields"]["less-no-jsd"]["max_jsd"] == "inf"
    assert facts["new_tokens"] == 16


def test_the_model_explains_its_samplers_and_their_fields(server: Running) -> None:
    facts = server.get("/v1/models/tiny").json()["unmask"]
    assert set(facts["sampler_words"]) == set(facts["samplers"])
    for name, words in facts["sampler_words"].items():
        assert words["group"] in GROUPS
        assert words["summary"].endswith(".")
        assert set(words["fields"]) == set(settings(SAMPLERS[name]))
        assert all(words["fields"].values())
    assert facts["sampler_words"]["less"]["fields"]["max_jsd"] == field_lines(LESS)["max_jsd"]
    assert facts["sampler_words"]["less-paper"]["summary"] != facts["sampler_words"]["less"]["summary"]


def test_the_page_and_its_files_need_no_key_and_carry_the_policy(model: Trunk) -> None:
    with listening(model, api_key="secret") as running:
        for path in ("/", "/page/app.js", "/page/style.css", "/page/icon.svg"):
            for method in ("GET", "HEAD"):
                answer = httpx.request(method, running.url + path)
                assert answer.status_code == 200
                assert "default-src 'none'" in answer.headers["content-security-policy"]
                assert answer.headers["x-content-type-options"] == "nosniff"
        assert running.get("/page/app.js").headers["content-type"].startswith("text/javascript")
        for path in ("/page/secret.txt", "/page/..%2Fapp.py", "/page/__init__.py"):
            assert running.get(path).status_code == 404
        assert running.get("/v1/models").status_code == 401
        wait_until(lambda: running.engine.is_ready)
