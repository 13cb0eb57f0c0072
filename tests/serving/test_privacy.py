"""What leaves the server: no words of a request in the log, no folder of the machine in an answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_checkpoint
from tests.serving.conftest import Running, listening
from unmask.models import load
from unmask.models.trunk import Trunk
from unmask.serving.logs import JsonLines

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
SECRET = "rosebud"
HOLDS_IT: list[dict[str, Any]] = [
    {"prompt": SECRET},
    {"prompt": SECRET, "stream": True},
    {"prompt": SECRET * 1000},
    {"prompt": [SECRET, SECRET]},
    {"prompt": {"text": SECRET}},
    {"prompt": "a", SECRET: 1},
    {"prompt": "a", "stop": [SECRET, ""]},
    {"prompt": "a", "stop": [SECRET, 1]},
    {"prompt": "a", "stop": {"x": SECRET}},
    {"prompt": "a [[gap 3]]", "stop": SECRET},
    {"prompt": f"a [[gap {SECRET}]]"},
    {"prompt": "a", "tools": [SECRET]},
    {"prompt": "a", "model": SECRET},
    {"prompt": "a", "sampler": SECRET},
    {"prompt": "a", "sampler_fields": {"max_jsd": SECRET}},
    {"prompt": "a", "sampler_fields": {SECRET: SECRET}},
]
MESSAGES: list[Any] = [
    SECRET,
    [SECRET],
    [{"role": SECRET, "content": "a"}],
    [{"role": "user", "content": {"x": SECRET}}],
    [{"role": "user", "content": [{"type": SECRET}]}],
    [{"role": "user", "content": SECRET, SECRET: SECRET}],
]


def send_all(server: Running) -> None:
    for body in HOLDS_IT:
        server.post(COMPLETE, body)
    for messages in MESSAGES:
        server.post(CHAT, {"messages": messages})
    server.get(f"/v1/models/{SECRET}")
    server.get(f"/{SECRET}", headers={"user-agent": SECRET, "origin": f"http://{SECRET}"})


def logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(JsonLines().format(record) for record in caplog.records)


@pytest.mark.parametrize("log_prompts", [False, True])
def test_no_word_of_a_request_is_in_the_log_unless_it_may_be(
    model: Trunk, caplog: pytest.LogCaptureFixture, log_prompts: bool
) -> None:
    with caplog.at_level(logging.INFO), listening(model, log_prompts=log_prompts) as server:
        send_all(server)
    lines = "\n".join(line for line in logged(caplog).splitlines() if '"httpx"' not in line)
    assert lines.count('"event": "request"') >= len(HOLDS_IT) + len(MESSAGES)
    assert (SECRET in lines) == log_prompts


class Quoting:
    """A tokenizer that fails with a message that quotes the text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        raise RuntimeError(f"cannot encode {text}")

    encode_text = chat = encode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_an_error_that_quotes_the_prompt_is_logged_without_its_message(
    model: Trunk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "tokenizer", Quoting(model.tokenizer))
    with caplog.at_level(logging.INFO, "unmask"), listening(model) as server:
        failed = server.post(COMPLETE, {"prompt": SECRET})
    assert failed.status_code == 500
    lines = logged(caplog)
    assert SECRET not in lines + failed.text
    assert "RuntimeError" in lines
    assert "in encode" in lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("deep-down") / "checkpoint", "llada_tiny")


@pytest.fixture(scope="module")
def from_folder(folder: Path) -> Iterator[Running]:
    picky = "{% if messages[0].content == 'fail' %}{{ raise_exception('no') }}{% endif %}"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = picky + settings["chat_template"].replace(
        "{% for message in messages %}", "{% for message in messages if message.role != 'x' %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with listening(load(folder, device="cpu")) as running:
        yield running


@pytest.mark.parametrize(
    "message",
    [{"role": "user", "content": "fail"}, {"role": "x", "content": "a"}, {"role": " ", "content": "a"}],
    ids=str,
)
def test_no_error_shows_a_folder_of_the_server(from_folder: Running, message: Any, folder: Path) -> None:
    refused = from_folder.post(CHAT, {"messages": [message]})
    assert refused.status_code == 400
    assert "deep-down" not in refused.text
    for body in HOLDS_IT:
        assert "deep-down" not in from_folder.post(COMPLETE, body).text


def test_a_model_without_a_template_does_not_show_its_folder(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", "llada_tiny")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with listening(load(folder, device="cpu")) as server:
        refused = server.post(CHAT, {"messages": [{"role": "user", "content": "a"}]})
    assert refused.status_code == 400
    assert str(tmp_path) not in refused.text


@pytest.mark.parametrize("key", ["schlüssel", "鍵", "plain", "ключ with spaces"])
def test_a_key_may_have_any_letters(model: Trunk, key: str) -> None:
    with listening(model, api_key=key) as server:
        for sent, status in [(key, 200), (f"{key}x", 401), (f"x{key[1:]}", 401)]:
            header = {"authorization": f"Bearer {sent}".encode()}
            assert server.get("/v1/models", headers=header).status_code == status
