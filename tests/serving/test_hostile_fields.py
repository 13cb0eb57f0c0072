"""Absurd values in every field of a request: each is refused or answered, none is the server's fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import httpx
import pytest

from tests.serving.conftest import Gated, Running, listening, wait_until
from unmask import GenerationConfig, make_sampler
from unmask.decoding.memory import state_bytes
from unmask.models.trunk import Trunk
from unmask.samplers import SAMPLERS
from unmask.serving import Engine, Limits
from unmask.serving.protocol import ChatRequest, CompletionRequest

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
ABSURD: list[Any] = [
    -1,
    0,
    10**7,
    2**63,
    10**30,
    5e-324,
    1e39,
    1e308,
    "none",
    "\ud800",
    True,
    None,
    [511, 512],
    [10**30],
    {"order": "random", "demoted_ids": [10**6]},
]


@pytest.fixture(scope="module")
def small_server(model: Trunk) -> Iterator[Running]:
    with listening(model, limits=Limits(max_new_tokens=32, max_prompt_tokens=64)) as running:
        yield running


@pytest.fixture(scope="module")
def client(small_server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small_server.url, timeout=30) as client:
        yield client


def check(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Send a body; it may be refused, but the server must not fail."""
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    shown = f"{str(body)[:300]}: {answer.text[:300]}"
    assert answer.status_code < 500, shown
    if answer.status_code == 200 and body.get("stream"):
        assert "server_error" not in answer.text, shown
    elif answer.status_code != 200:
        assert answer.json()["error"]["message"], shown


# one preset of every kind of sampler: presets differ in the values of the same fields
KINDS = {type(sampler): name for name, sampler in reversed(SAMPLERS.items())}


@pytest.mark.parametrize("name", KINDS.values())
def test_no_field_of_a_sampler_makes_the_server_fail(client: httpx.Client, name: str) -> None:
    sampler = make_sampler(name)
    assert is_dataclass(sampler)
    for number, field in enumerate(fields(sampler)):
        for value in ABSURD if number == 0 else ABSURD[:8]:  # words and lists are refused by their type
            body = {"prompt": "a", "max_tokens": 3, "sampler": name, "sampler_fields": {field.name: value}}
            check(client, COMPLETE, body)
            if isinstance(value, float):
                check(client, COMPLETE, {**body, "prompt": "a [[gap 2]] b", "temperature": 1, "seed": 1})


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest], ids=["completion", "chat"])
def test_no_field_of_a_request_makes_the_server_fail(client: httpx.Client, kind: Any) -> None:
    path = CHAT if kind is ChatRequest else COMPLETE
    message = {"role": "user", "content": "a"}
    start: dict[str, Any] = {"messages": [message]} if kind is ChatRequest else {"prompt": "a"}
    mine = ABSURD[kind is ChatRequest :: 2]  # both kinds read their fields in the same way
    for field in kind.model_fields:
        for value in mine:
            check(client, path, {"max_tokens": 3, **start, field: value})
            if field in ("temperature", "top_p", "top_k", "guidance", "block_length", "steps"):
                sampled = {"temperature": 1.0, "cache": "prefix", field: value, "stream": True}
                check(client, path, {"max_tokens": 3, **start, **sampled})
    for key in ("role", "content", "name", "tool_calls", "x"):
        for value in ABSURD:
            check(client, CHAT, {"max_tokens": 3, "messages": [{**message, key: value}]})


def test_a_sampler_that_keeps_more_than_the_server_has_is_refused_before_any_work(model: Trunk) -> None:
    keeps = {"sampler": "less", "sampler_fields": {"persistence": 64}, "block_length": "none"}
    with listening(model, limits=Limits(max_state_mb=4)) as server:
        long = server.post(COMPLETE, {"prompt": "a", "max_tokens": 512, **keeps})
        short = server.post(COMPLETE, {"prompt": "a", "max_tokens": 8, **keeps})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "sampler")
    assert short.status_code == 200


def test_running_requests_keep_no_more_than_the_server_has_together(model: Trunk) -> None:
    needs = make_sampler("klass").needs
    each = state_bytes(needs, model.info, 128)
    limits = Limits(max_state_mb=max(1, 2 * each // 2**20 + 1))
    room = limits.max_state_mb * 2**20 // each
    with Engine(Gated(model), limits) as engine:
        gated: Any = engine.model
        config = GenerationConfig(max_new_tokens=128, steps=4)
        jobs = [engine.submit("a", make_sampler("klass"), config) for _ in range(room + 2)]
        wait_until(lambda: engine.running > 0)
        gated.let(room)
        wait_until(lambda: engine.running == room)
        assert engine.waiting == 2
        gated.open()
        assert all(job.result(20).text is not None for job in jobs)


def test_the_memory_of_a_sampler_grows_with_what_it_keeps(model: Trunk) -> None:
    def size(**fields: Any) -> int:
        return state_bytes(make_sampler("klass", **fields).needs, model.info, 64)

    logits = 64 * model.info.vocab_size * 4
    assert logits < size(history=2) < size(history=64) < 2 * logits
    assert state_bytes(make_sampler("threshold").needs, model.info, 64) == 0


@pytest.mark.parametrize("depth", [200, 900, 5000])
def test_a_deep_value_is_refused(client: httpx.Client, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for body in (f'{{"prompt": {deep}}}', f'{{"prompt": "a", "sampler_fields": {{"max_jsd": {deep}}}}}'):
        answer = client.post(COMPLETE, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text


def test_a_conversation_has_a_bounded_number_of_messages(client: httpx.Client) -> None:
    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": ""}] * 20_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert answer.elapsed.total_seconds() < 5
