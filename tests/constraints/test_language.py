"""Patterns and schemas: what they hold exactly, and the sentences for what they do not."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.schemas import validate
from tests.raises import raises_field
from unmask import Choice, GenerationConfig, JSONSchema, Regex
from unmask.constraints import automaton, bytes
from unmask.constraints.automaton import Automata
from unmask.constraints.bytes import ByteAutomaton
from unmask.constraints.language import ANY_OBJECT

NAMES = st.sampled_from(["a", "b c", "ü", 'q"', "x.y", "type"])
LEAVES = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string"},
        {"type": "string", "minLength": 1, "maxLength": 3},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "pattern": "^[a-c]+(x|y)$"},
        {"type": ["integer", "null"]},
        {"enum": ["x", 1, None, 'say "hi"\n', [1, {"k": 2}]]},
        {"const": "ä"},
        {"$ref": "#/$defs/word"},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.builds(
            lambda parts, count: {
                "type": "object",
                "properties": parts,
                "required": list(parts)[:count],
            },
            st.dictionaries(NAMES, part, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(
            lambda items, low, more: {
                "type": "array",
                "items": items,
                "minItems": low,
                "maxItems": low + more,
            },
            part,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.lists(part, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        part.map(lambda one: {"type": "object", "additionalProperties": one}),
    ),
    max_leaves=5,
)


def texts(language: ByteAutomaton, number: int, seed: int = 0):
    """Random texts of a language, by walks that are drawn to its end after a while."""
    rng, table = random.Random(seed), language.table.tolist()
    accept, dead = language.accept.tolist(), language.dead
    distance = [0 if final else dead + 1 for final in accept]
    for _ in range(dead):
        better = [min(distance[state], 1 + min(distance[to] for to in table[state])) for state in range(dead)]
        if [*better, dead + 1] == distance:
            break
        distance = [*better, dead + 1]
    for _ in range(number):
        state, written, patience = 0, [], rng.randrange(60)
        while not (accept[state] and (len(written) >= patience or rng.random() < 0.1)):
            options = [byte for byte in range(256) if table[state][byte] != dead]
            if len(written) >= patience:
                nearest = min(distance[table[state][byte]] for byte in options)
                options = [byte for byte in options if distance[table[state][byte]] == nearest]
            if not options:
                break
            written.append(rng.choice(options))
            state = table[state][written[-1]]
        yield "".join(map(chr, written)).encode("latin-1").decode()


@settings(max_examples=25)
@given(SCHEMAS)
def test_texts_of_a_schema_are_json_that_validates(schema):
    schema = {**schema, "$defs": {"word": {"type": "string", "maxLength": 2}}}
    for text in texts(ByteAutomaton.compile(JSONSchema(schema)), 5):
        validate(json.loads(text), schema)


def test_any_object_has_open_values():
    language = ByteAutomaton.compile(ANY_OBJECT)
    assert all(isinstance(json.loads(text), dict) for text in texts(language, 20))
    state = 0
    for byte in b'{"a": [1, {"b": null}], "c": true}':
        state = int(language.table[state, byte])
    assert not language.accept[state], "lists and objects nest two deep: an object in a list is one too many"


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("a|ab", ["a", "ab"], ["", "b", "aba"]),
        ("^ab|c$", ["ab", "c"], ["a"]),
        (r"a\$", ["a$"], ["a"]),
        (r"[\^$]x", ["^x", "$x"], ["x"]),
        ("(a*?|b+)c?", ["", "aac", "bc"], ["abc"]),
        ("(?i)ä[^b]", ["äx", "Ä-"], ["äb"]),
        (r"\d+", ["19"], ["٣", ""]),
        ("", [""], ["a"]),
    ],
)
def test_a_pattern_matches_as_fullmatch_does(pattern, inside, outside):
    language = ByteAutomaton.compile(Regex(pattern))
    for text in (*inside, *outside):
        state = 0
        for byte in text.encode():
            state = int(language.table[state, byte])
        assert bool(language.accept[state]) == (text in inside)
        assert text not in inside or re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "pattern", ["(a", "[[a]", "(a$|b)c", r"\bx", "(?=a)b", r"(a)\1", "a" * 30_000, 3, "a{9,1}", "[^\\s\\S]"]
)
def test_a_bad_pattern_is_refused_with_a_sentence(pattern):
    with raises_field("regex"):
        ByteAutomaton.compile(Regex(pattern))


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (
            {"type": "object", "properties": {"next": {"$ref": "#"}, "x": {"oneOf": []}}},
            "json_schema.properties.x",
        ),
        ({"$ref": "#/$defs/none"}, "json_schema.$ref"),
        ({"type": "number", "minimum": 3}, "json_schema.minimum"),
        ({"oneOf": [{"type": "null"}]}, "json_schema"),
        ({"type": "string", "format": "email"}, "json_schema.format"),
        ({"type": "string", "pattern": "ab"}, "json_schema.pattern"),
        ({"type": "integer", "enum": ["a"]}, "json_schema.enum"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "json_schema.required"),
        ({"type": "array", "items": {"type": "x"}}, "json_schema.items"),
        ({"type": "array", "uniqueItems": True}, "json_schema.uniqueItems"),
        ({"const": {"a.b": 1}}, "json_schema.const"),
        ({}, "json_schema"),
        ("{", "json_schema"),
        ([], "json_schema"),
        ({1, 2}, "json_schema"),
    ],
)
def test_a_schema_that_cannot_be_held_exactly_is_refused(schema, field):
    with raises_field(field):
        JSONSchema(schema)


def test_a_pattern_in_a_schema_must_leave_the_string_whole():
    with raises_field("json_schema"):
        ByteAutomaton.compile(JSONSchema({"type": "string", "pattern": "^.*$"}))


def test_references_that_multiply_are_refused_at_once():
    parts = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(40)}
    with raises_field("json_schema"):
        JSONSchema({"$ref": "#/$defs/n0", "$defs": {**parts, "n40": {"type": "null"}}})


def test_languages_that_are_too_large_are_refused_in_time(monkeypatch):
    monkeypatch.setattr(bytes, "SECONDS", 0.5)
    with raises_field("regex"):
        ByteAutomaton.compile(Regex("((a{100}){100}){100}"))
    monkeypatch.undo()
    monkeypatch.setattr(automaton, "MAX_STATES", 50)
    with raises_field("regex", 101):
        Automata().get(Regex("a{100}"), [b"a"], [])


@pytest.mark.parametrize("options", ["yes", [], [""], ["a", 1], ["\ud800"], ["a"] * 2000])
def test_bad_choices_are_refused(options):
    with raises_field("choice"):
        Choice(options)


def test_a_constraint_is_a_value():
    assert Choice(["a", "b"]) == Choice(("a", "b"))
    assert hash(JSONSchema({"type": "null"})) == hash(JSONSchema('{"type": "null"}'))
    with raises_field("constraint"):
        GenerationConfig(constraint="[0-9]+")
    with raises_field("constraint"):
        GenerationConfig(constraint=[Regex("a")]).constraints(2)


def test_automata_are_kept_on_disk_and_a_damaged_file_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    tokens = [None, b"a", b"b", b"ab", "ä".encode()[:1], "ä".encode()[1:]]
    first = Automata().get(Regex("(ab|ä)*"), tokens, [0])
    [file] = (tmp_path / "constraints").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(ByteAutomaton, "compile", None)
        again = Automata().get(Regex("(ab|ä)*"), tokens, [0])
        with pytest.raises(TypeError):
            Automata().get(Regex("(ab|ä)*"), tokens[::-1], [5])
    assert again.next.equal(first.next)
    file.write_bytes(b"PK\x03\x04 broken")
    assert Automata().get(Regex("(ab|ä)*"), tokens, [0]).next.equal(first.next)
