"""The sentence of a refusal: it names the field as the request does and shows the value as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.conftest import Running
from unmask.cli.fields import parse as parse_option
from unmask.errors import FieldError

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
TREE = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "object", "properties": {"next": {"$ref": "#"}}}},
}
PYTHON = ("True", "False", "None", "Input should", "List should", "valid ", "cannot be read")


def refusal(server: Running, path: str, body: Any) -> dict[str, Any]:
    """The error of a request that must be refused."""
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_conversation_without_messages_is_refused_in_our_words(server: Running) -> None:
    error = refusal(server, CHAT, {"messages": []})
    assert error["param"] == "messages"
    assert error["message"] == "messages must hold at least one message, got []"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [True]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*HELLO["messages"], {"role": " ", "content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages[0].tool_calls"),
        ({**HELLO, "stop": ["a", 1]}, "stop[1]"),
        ({**HELLO, "stream_options": {"x": 1}}, "stream_options.x"),
        (
            {**HELLO, "sampler": "base", "sampler_fields": {"demoted_ids": [1, "a"]}},
            "sampler_fields.demoted_ids[1]",
        ),
        (
            {**HELLO, "sampler": "prophet", "sampler_fields": {"base": {"order": "x"}}},
            "sampler_fields.base.order",
        ),
        (
            {**HELLO, "sampler": "prophet", "sampler_fields": {"base": {"demoted_ids": [-1]}}},
            "sampler_fields.base.demoted_ids",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_path_is_spelled_as_openai_spells_it(server: Running, body: dict[str, Any], field: str) -> None:
    message = refusal(server, CHAT, body)["message"]
    assert message.startswith(f"{field} ")
    assert not [word for word in PYTHON if word in message]


@pytest.mark.parametrize(
    ("path", "body", "value"),
    [
        (CHAT, {**HELLO, "temperature": True}, "true"),
        (CHAT, {**HELLO, "max_tokens": False}, "false"),
        (CHAT, {**HELLO, "n": True}, "true"),
        (CHAT, {**HELLO, "foo": None}, "null"),
        (CHAT, {**HELLO, "tools": [{"a": True, "b": None}]}, '[{"a": true, "b": null}]'),
        (CHAT, {**HELLO, "sampler_fields": {"foo": True}}, "true"),
        (CHAT, {**HELLO, "sampler_fields": {"window": True}}, "true"),
        (CHAT, {**HELLO, "stream_options": {"x": False}}, "false"),
        (CHAT, {**HELLO, "stream_options": {"include_obfuscation": True}}, "true"),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, "null"),
        (CHAT, [True], "[true]"),
        (COMPLETE, {"prompt": [True]}, "[true]"),
        (COMPLETE, {"prompt": None}, "null"),
        (COMPLETE, {"prompt": "a", "response_format": TREE}, '{"type": "json_schema"'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_is_shown_as_json(server: Running, path: str, body: Any, value: str) -> None:
    message = refusal(server, path, body)["message"]
    assert f"got {value}" in message
    assert not [word for word in PYTHON if word in message]


def test_letters_that_do_not_print_are_escaped_in_a_value(server: Running) -> None:
    message = refusal(server, CHAT, {**HELLO, "tools": ["é\u009b\u202e"]})["message"]
    assert '["é\\u009b\\u202e"]' in message


@pytest.mark.parametrize("body", [r'{"prompt": "\ud800"}', r'{"prompt": "a", "\ud800": 1}'])
def test_half_a_surrogate_pair_is_refused(server: Running, body: str) -> None:
    headers = {"content-type": "application/json"}
    answer = server.post(COMPLETE, content=body, headers=headers)
    assert answer.status_code == 400
    assert r"\ud800" in answer.json()["error"]["message"]


def test_a_choice_is_named_once(server: Running) -> None:
    message = refusal(server, CHAT, {**HELLO, "cache": "duall"})["message"]
    assert message.startswith("cache must be ")
    assert [message.count(f"'{name}'") for name in ("prefix", "dual", "append", "none", "duall")] == [1] * 5
    assert message.count("must be") == 1


@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [("max_jsd", float, "a"), ("persistence", int, "1.5"), ("lookahead", int, "a")],
)
def test_a_field_of_a_sampler_is_refused_in_the_words_of_the_command_line(
    server: Running, field: str, kind: Any, value: str
) -> None:
    with pytest.raises(FieldError) as told:
        parse_option(field, kind, value)
    error = refusal(server, CHAT, {**HELLO, "sampler": "less", "sampler_fields": {field: value}})
    assert error == {**error, "message": f"sampler_fields.{told.value}", "param": "sampler_fields"}


def test_a_field_that_may_be_null_says_so(server: Running) -> None:
    body = {**HELLO, "sampler": "less", "sampler_fields": {"fallback": {}}}
    message = refusal(server, CHAT, body)["message"]
    assert all(word in message for word in ("'surest'", "'first'", "a whole number", "null", "got {}"))


def test_a_sampler_that_cannot_be_served_is_shown_by_its_name(server: Running) -> None:
    body = {**HELLO, "sampler": "first-mask-speculative"}
    error = refusal(server, CHAT, body)
    assert error["param"] == "sampler"
    assert "got 'first-mask-speculative'" in error["message"]
    changed = refusal(server, CHAT, {**body, "sampler_fields": {"min_confidence": 0.5}})
    assert '"sampler": "first-mask-speculative"' in changed["message"]
    assert '"min_confidence": 0.5' in changed["message"]


@pytest.mark.parametrize(
    "content", ["", [], [{"type": "text", "text": ""}, {"type": "text", "text": ""}]], ids=str
)
@pytest.mark.parametrize("before", [[], [{"role": "system", "content": "a"}]], ids=["alone", "after another"])
def test_an_empty_question_is_refused(server: Running, before: list[Any], content: Any) -> None:
    messages = [*before, {"role": "user", "content": content}]
    error = refusal(server, CHAT, {"messages": messages})
    assert error["param"] == "messages"
    assert error["message"].startswith(f"messages[{len(before)}].content ")
    assert "; " in error["message"]  # a remedy


def test_an_empty_message_before_the_last_question_is_answered(server: Running) -> None:
    messages = [{"role": role, "content": text} for role, text in (("user", ""), ("assistant", ""))]
    answer = server.post(CHAT, {"messages": [*messages, {"role": "user", "content": "a"}], "max_tokens": 2})
    assert answer.status_code == 200, answer.text
