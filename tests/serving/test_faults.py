"""What bad input and vanishing clients do to the server: nothing."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import torch

from tests.serving.conftest import Running, listening, wait_until
from unmask import Base, generate
from unmask.models.trunk import Trunk
from unmask.text.config import GenerationConfig
from unmask.types import Decision, Observation

COMPLETE = "/v1/completions"
JSON = {"content-type": "application/json"}
HEAD = f"POST {COMPLETE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LONG = {"prompt": "the", "max_tokens": 1000, "stream": True}  # 30 seconds, if nobody ends it


@pytest.fixture(autouse=True)
def still_well(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test does, the server answers afterwards and holds no more than before."""
    named = [name for name in ("server", "slow_server") if name in request.fixturenames]
    servers: list[Running] = [request.getfixturevalue(name) for name in named]
    for running in servers:  # what is made once is made now
        assert running.post(COMPLETE, {"prompt": "a", "max_tokens": 2}).status_code == 200
    before = [running.holds() for running in servers]
    yield
    for running, held in zip(servers, before, strict=True):
        assert running.post(COMPLETE, {"prompt": "a", "max_tokens": 2}).status_code == 200
        wait_until(lambda running=running, held=held: no_more(running.holds(), held))


def no_more(now: dict[str, int], before: dict[str, int]) -> bool:
    return now["rows"] == 0 and all(now[name] <= before[name] for name in before)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the body is not valid JSON"),
        (b"", "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object, got []"),
        (b'{"prompt": "\xff"}', "the body is not valid UTF-8 (byte 12)"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is not a number that JSON knows"),
        (b'{"prompt": "a", "temperature": Infinity}', "Infinity is not a number that JSON knows"),
        (b'{"prompt": "a", "sampler_fields": {"max_jsd": NaN}}', "NaN is not a number that JSON knows"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", ""),
        (b'{"prompt": "\\ud800"}', ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_that_is_no_request_is_refused(server: Running, body: bytes, sentence: str) -> None:
    refused = server.post(COMPLETE, content=body, headers=JSON)
    assert refused.status_code == 400
    assert sentence in refused.json()["error"]["message"]
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"steps": -1}, "steps", ">= 1, got -1"),
        ({"steps": 0}, "steps", ">= 1, got 0"),
        ({"steps": 10**9}, "steps", "at most 1024 on this server, got 1000000000"),
        ({"steps": 1.5}, "steps", "1.5"),
        ({"max_tokens": 0}, "max_tokens", ">= 1, got 0"),
        ({"max_tokens": -1}, "max_tokens", ">= 1, got -1"),
        ({"max_tokens": 65}, "max_tokens", "at most 64 on this server, got 65"),
        ({"max_tokens": "8"}, "max_tokens", "got '8'"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", "4, got 5"),
        ({"min_tokens": -1}, "min_tokens", ">= 0, got -1"),
        ({"temperature": -1}, "temperature", ">= 0"),
        ({"temperature": 1e400}, "temperature", ""),
        ({"top_p": 0}, "top_p", "(0, 1], got 0"),
        ({"top_k": -1}, "top_k", ">= 0, got -1"),
        ({"seed": -1}, "seed", ">= 0, got -1"),
        ({"seed": 2**63}, "seed", f"at most {2**63 - 1}"),
        ({"guidance": -1}, "guidance", ">= 0"),
        ({"stop": [""]}, "stop", "got ''"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 on this server, got 17"),
        ({"stop": ["a" * 257]}, "stop", "at most 256 on this server, got 257"),
        ({"block_length": 0}, "block_length", ">= 1, got 0"),
        ({"block_length": "big"}, "block_length", "'big'"),
        ({"block_length": 4, "steps": 2}, "steps", "at least 4"),
        ({"end_tokens": "drop"}, "end_tokens", "'drop'"),
        ({"end_tokens": "demote"}, "end_tokens", "'base'"),
        ({"min_gap": 0}, "min_gap", ">= 1, got 0"),
        ({"min_gap": "wide"}, "min_gap", "'wide'"),
        ({"sampler": "less-first-mask", "sampler_fields": {"max_jsd": -1}}, "sampler_fields", "max_jsd"),
        ({"sampler": "threshold", "sampler_fields": {"fallback": 0}}, "sampler_fields", "fallback"),
        ({"sampler": "lesss"}, "sampler", "did you mean 'less'?"),
        (
            {"sampler": "threshold", "sampler_fields": {"min_confidence": "x"}},
            "sampler_fields",
            "sampler_fields.min_confidence",
        ),
        (
            {"sampler": "threshold", "sampler_fields": {"min_confidence": 2}},
            "sampler_fields",
            "sampler_fields.min_confidence must be in [0, 1]",
        ),
        ({"sampler": "less", "sampler_fields": {"max_jsd": -1}}, "sampler_fields", "sampler_fields.max_jsd"),
        ({"sampler": "less", "sampler_fields": {"top_k": 0}}, "sampler_fields", "sampler_fields.top_k"),
        ({"sampler_fields": {"windw": 2}}, "sampler_fields", "did you mean 'window'?"),
        ({"sampler": "prophet", "sampler_fields": {"base": "less"}}, "sampler_fields", "base"),
        ({"sampler": "prophet", "sampler_fields": {"base": "bass"}}, "sampler_fields", "'base'?"),
        ({"n": 2}, "n", "got 2; leave it out"),
        ({"logprobs": 5}, "logprobs", "got 5; leave it out"),
        ({"echo": True}, "echo", "got true; leave it out"),
        ({"tools": [{"type": "function"}]}, "tools", "leave it out"),
        ({"prompt": ["a", "b"]}, "prompt", "got 2"),
        ({"prompt": []}, "prompt", "at least one token, got []"),
        ({"prompt": ""}, "prompt", "at least one token, got ''"),
        ({"prompt": "a" * 3000}, "prompt", "at most 200 on this server"),
        ({"prompt": [99999]}, "prompt", "got 99999"),
        ({"prompt": f"a [[gap {10**12}]]"}, "prompt", "at most 64 on this server"),
        ({"prompt": "a [[gap 0]]"}, "prompt", "[[gap 0]]'"),
        ({"prompt": "a [[gap x]]"}, "prompt", "[[gap x]]"),
        ({"prompt": "a [[gap 3]]", "stop": "x"}, "stop", "got 'x'"),
        ({"prompt": "a [[gap 3]]", "min_tokens": 2}, "min_tokens", "got 2"),
        ({"drafts": True}, "drafts", "stream"),
        ({"drafts": True, "stream": False}, "drafts", "stream"),
        ({"deadline": 0}, "deadline", "> 0, got 0"),
        ({"deadline": -1}, "deadline", "> 0, got -1"),
        ({"promt": "a"}, "promt", "did you mean 'prompt'?"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_names_the_field_of_the_request(
    server: Running, fields: Any, param: str, words: str
) -> None:
    content = json.dumps({"prompt": "a", **fields}).replace("Infinity", "1e400")
    refused = server.post(COMPLETE, content=content.encode(), headers=JSON)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert words in error["message"]
    assert "_new_tokens" not in error["message"]


@pytest.mark.parametrize(("sampler", "field", "value"), [("base", "demoted_ids", [99999])])
def test_a_sampler_field_that_does_not_fit_the_request_is_its_mistake(
    server: Running, sampler: str, field: str, value: Any
) -> None:
    body = {"prompt": "a", "sampler": sampler, "sampler_fields": {field: value}}
    refused = server.post(COMPLETE, body)
    streamed = server.post(COMPLETE, {**body, "stream": True})
    assert (refused.status_code, streamed.status_code) == (400, 400)
    for error in (refused.json()["error"], streamed.json()["error"]):
        assert (error["type"], error["param"]) == ("invalid_request_error", "sampler_fields")
        assert f"sampler_fields.{field} must" in error["message"]


def test_a_chat_may_name_its_length_in_two_ways_but_only_one_length(server: Running) -> None:
    def ask(**lengths: int) -> httpx.Response:
        chat = {"messages": [{"role": "user", "content": "hi"}], **lengths}
        return server.post("/v1/chat/completions", chat)

    assert ask(max_tokens=3, max_completion_tokens=3).status_code == 200
    refused = ask(max_tokens=3, max_completion_tokens=4)
    assert refused.status_code == 400
    assert "got 3 and 4" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "max_completion_tokens"
    for name in ("max_tokens", "max_completion_tokens"):
        error = ask(**{name: 0}).json()["error"]
        assert error["param"] == name
        assert error["message"].startswith(f"{name} must be")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "a", "nmae": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "x"}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}, "messages"),
        ({"stream": True, "stream_options": {"include_usages": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
    ids=str,
)
def test_unknown_fields_inside_a_field_are_refused(server: Running, fields: Any, param: str) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    refused = server.post("/v1/chat/completions", {**chat, **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_message_of_an_answer_can_be_sent_back(server: Running) -> None:
    question = {"role": "user", "content": "a", "name": "me"}
    with server.client() as client:
        made = client.chat.completions.create(model="tiny", messages=[question])  # type: ignore[list-item]
    messages = [question, made.choices[0].message.model_dump(), question]
    assert server.post("/v1/chat/completions", {"messages": messages}).status_code == 200


def test_a_chat_that_is_too_long_names_its_messages(server: Running) -> None:
    refused = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 3000}]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "messages", [[], "hi", [{"role": "user"}], [{"role": "user", "content": [{"type": "image_url"}]}], None]
)
def test_bad_conversations_are_refused(server: Running, messages: Any) -> None:
    refused = server.post("/v1/chat/completions", {"messages": messages})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"


def test_neutral_values_of_what_we_cannot_do_are_taken(server: Running) -> None:
    body = {"prompt": "a", "n": 1, "logprobs": None, "frequency_penalty": 0, "logit_bias": {}, "user": "me"}
    assert server.post(COMPLETE, body).status_code == 200


def test_a_body_that_is_too_long_is_refused(server: Running) -> None:
    refused = server.post(COMPLETE, {"prompt": "a" * 10_000_000})
    assert refused.status_code == 413
    assert refused.json()["error"]["message"] == "the body must be at most 1048576 bytes"


def test_unknown_places_and_methods_answer_in_the_same_form(server: Running) -> None:
    assert server.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    wrong = server.get(COMPLETE)
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")


def test_a_sampler_that_needs_a_longer_generation_is_a_400(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 8, "sampler": "prophet", "sampler_fields": {"answer_start": 8}}
    refused = server.post(COMPLETE, body)
    assert refused.status_code == 400
    assert '"answer_start": 8' in refused.json()["error"]["message"]
    assert server.post(COMPLETE, {**body, "max_tokens": 9}).status_code == 200  # one column of the region


@dataclass(frozen=True)
class Failing(Base):
    """A sampler with a mistake of its own, told in its own words."""

    error: type[Exception] = ValueError

    def decide(self, obs: Observation) -> Decision:
        raise self.error("nothing was decided")


def test_a_sampler_that_raises_is_a_500_and_a_log_line(
    model: Trunk, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": "a"}
    with caplog.at_level(logging.INFO, "unmask"), listening(model, sampler=Failing()) as server:
        failed = server.post(COMPLETE, body)
        streamed = server.post(COMPLETE, {**body, "stream": True})
    assert (failed.status_code, streamed.status_code) == (500, 200)
    for error in (failed.json()["error"], json.loads(streamed.text.removeprefix("data: "))["error"]):
        assert (error["type"], error["param"]) == ("server_error", None)
        assert "nothing was decided" in error["message"]
    assert "a sampler failed" in caplog.text


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="new in torch 2.8")
def test_a_server_whose_device_is_lost_says_that_it_is_not_ready(model: Trunk) -> None:
    body = {"prompt": "a"}
    with listening(model, sampler=Failing(error=torch.AcceleratorError)) as server:
        assert server.get("/readyz").status_code == 200
        assert server.post(COMPLETE, body).status_code == 500
        assert (server.get("/readyz").status_code, server.get("/healthz").status_code) == (503, 200)
        assert server.post(COMPLETE, body).status_code == 503


def test_a_client_that_vanishes_in_a_stream_frees_its_row(slow_server: Running) -> None:
    with (
        httpx.Client(timeout=60) as client,
        # a draft comes after the first step, a text when its first position is committed, perhaps last
        client.stream("POST", slow_server.url + COMPLETE, json={**LONG, "drafts": True}) as stream,
    ):
        next(stream.iter_bytes())
        wait_until(lambda: slow_server.engine.running == 1)
    wait_until(lambda: slow_server.engine.running == 0, 15)


def test_a_client_that_vanishes_while_it_waits_frees_its_row(slow_server: Running) -> None:
    address = slow_server.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "stream": False})
    with socket.create_connection((address[0], int(address[1]))) as connection:
        connection.sendall(f"{HEAD}content-length: {len(body)}\r\n\r\n{body}".encode())
        wait_until(lambda: slow_server.engine.running == 1)
    wait_until(lambda: slow_server.engine.running == 0, 15)


def test_a_client_that_vanishes_in_its_body_leaves_nothing(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{HEAD}content-length: 99\r\n\r\n{{".encode())
    assert server.get("/healthz").status_code == 200


def test_more_streams_than_allowed_are_refused(slow_server: Running) -> None:
    with httpx.Client(timeout=60) as client:
        open_streams = []
        for _ in range(3):
            request = client.build_request("POST", slow_server.url + COMPLETE, json=LONG)
            open_streams.append(client.send(request, stream=True))
        refused = slow_server.post(COMPLETE, LONG)
        for stream in open_streams:
            stream.close()
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_streams"

    def accepted() -> bool:
        return slow_server.post(COMPLETE, {**LONG, "max_tokens": 1}).status_code == 200

    wait_until(accepted)


def test_prompts_stay_out_of_the_log_unless_they_are_asked_for(
    model: Trunk, caplog: pytest.LogCaptureFixture
) -> None:
    for asked in (False, True):
        caplog.clear()
        with caplog.at_level(logging.INFO, "unmask"), listening(model, log_prompts=asked) as server:
            body = {"prompt": "a secret of mine", "min_tokens": 1}
            server.post(COMPLETE, body)
            server.post(COMPLETE, {**body, "stream": True})
        lines = [vars(record) for record in caplog.records if record.getMessage() == "request"]
        assert len(lines) == 2
        assert all(line["status"] == 200 and line["completion_tokens"] >= 1 for line in lines)
        assert ("a secret of mine" in str(lines)) == asked


def test_many_at_once_get_what_each_gets_alone(server: Running, model: Trunk) -> None:
    def say(number: int) -> str:
        body = {
            "prompt": f"number {number}",
            "max_tokens": 4 + number % 9,
            "seed": number,
            "temperature": 0.8,
        }
        answer = server.post(COMPLETE, {**body, "stream": number % 2 == 0})
        if number % 2:
            return str(answer.json()["choices"][0]["text"])
        parts = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(part["choices"][0]["text"] for part in parts)

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(say, range(32)))
    for number, text in enumerate(texts):
        config = GenerationConfig(max_new_tokens=4 + number % 9, seed=number, temperature=0.8)
        assert text == generate(model, [f"number {number}"], config=config)[0].text
