"""Constraints on the command line."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("outlines_core")
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))


def test_a_text_is_held_to_a_choice_a_pattern_or_a_schema(lines, llada, tmp_path):
    [line] = lines("generate", "-m", llada, "hello", "-n", 8, "--choice", "ab", "--choice", "cd")
    assert line["text"] in ("ab", "cd")
    [line] = lines("generate", "-m", llada, "hello", "-n", 8, "--regex", "[ab]{3}")
    assert set(line["text"]) <= set("ab")
    assert len(line["text"]) == 3
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    [line] = lines("infill", "-m", llada, '{"n":[[gap 0-4]]', "--json-schema", tmp_path / "schema.json")
    assert json.loads(line["text"])["n"] in (1, 2)


def test_a_text_follows_a_grammar_in_a_file(lines, call, llada, tmp_path):
    pytest.importorskip("llguidance")
    (tmp_path / "nested.lark").write_text('start: "(" start ")" | "a"')
    options = ["generate", "-m", llada, "hello", "-n", 12, "--grammar", tmp_path / "nested.lark"]
    [line] = lines(*options, "-s", "first-mask")
    assert (
        line["text"] in ("(" * depth + "a" + ")" * depth for depth in range(6)) or line["finish"] == "length"
    )
    refused = call(*options, "-s", "threshold")
    assert refused.exit_code != 0
    assert "first-mask" in refused.stderr


def test_two_constraints_and_a_bad_one_are_refused(call, llada):
    result = call("generate", "-m", llada, "hello", "--regex", "a", "--choice", "b")
    assert result.exit_code != 0
    assert "--choice" in result.stderr
    assert call("generate", "-m", llada, "hello", "--regex", "(a").exit_code != 0
