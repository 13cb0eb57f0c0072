"""Drafts that say more: every step, with signals and candidates, for readers such as the page."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest
import torch

import unmask
from tests.serving.conftest import Running, listening, wait_until
from unmask.models.trunk import Trunk
from unmask.serving import Engine
from unmask.text.generate import prepare
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
def test_every_step_is_told_with_the_signals_of_its_decision(
    server: Running, model: Trunk, sampler: str
) -> None:
    told, steps = drafts(server, sampler=sampler), followed(model, sampler)
    assert [draft["step"] for draft in told] == [step.index for step in steps]
    for draft, step in zip(told, steps, strict=True):
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
                for name in ("jsd", "persistence"):
                    if name in step.decision.signals:
                        check_signal(place[name], step.decision.signals[name][0, offset])


def check_signal(told: float | bool | None, value: torch.Tensor) -> None:
    if torch.isfinite(value):
        assert told == pytest.approx(float(value), abs=2e-5)
    else:
        assert told is None


def test_candidates_are_the_most_likely_tokens_and_confidence_is_the_first(server: Running) -> None:
    for draft in drafts(server, sampler="base"):
        for place in draft["positions"]:
            chances = [chance for _, _, chance in place.get("candidates", [])]
            if chances:
                assert len(chances) == 4
                assert chances == sorted(chances, reverse=True)
                assert place["confidence"] == chances[0]


def test_a_sampler_without_jsd_gets_one_from_the_second_look_on(server: Running) -> None:
    told = drafts(server, sampler="threshold", block_length="none")
    for before, draft in pairwise(told):
        for was, place in zip(before["positions"], draft["positions"], strict=True):
            if "candidates" in place:
                assert place["jsd"] >= 0
                if place["candidates"] == was["candidates"]:
                    assert place["jsd"] < 1e-5


def test_the_leftovers_of_a_spent_budget_are_told_too(server: Running, model: Trunk) -> None:
    told = drafts(server, sampler="less-paper", steps=2, block_length="none")
    assert told[-1]["leftover"]
    assert all(place["state"] != "masked" for place in told[-1]["positions"])


def test_a_job_with_candidates_keeps_every_step_for_a_reader_that_comes_late(model: Trunk) -> None:
    with Engine(model) as engine:
        config = unmask.GenerationConfig(max_new_tokens=12)
        job = engine.submit("the cat", unmask.LESS(), config, candidates=3)
        plain = engine.submit("the cat", unmask.LESS(), config)
        answer = job.result(20)
        assert plain.result(20).token_ids == answer.token_ids
    kept = list(job.unread())
    assert [snapshot.step for snapshot in kept][: answer.steps] == list(range(1, answer.steps + 1))
    assert kept[0].look is not None
    assert kept[0].look.seen.top_ids.shape[-1] == 3
    assert list(plain.unread()) == []


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


def test_the_model_tells_what_its_samplers_can_be_asked(server: Running) -> None:
    facts = server.get("/v1/models/tiny").json()["unmask"]
    assert set(facts["sampler_fields"]) == set(facts["samplers"])
    assert facts["sampler_fields"]["less"]["max_jsd"] == 0.04
    assert facts["sampler_fields"]["less-no-jsd"]["max_jsd"] == "inf"
    assert facts["new_tokens"] == 16


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
