"""Context-free grammars, from left to right: what is written is a beginning, and whole if it ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.constraints.letters import END, writer
from tests.constraints.schemas import validate
from tests.raises import raises_field
from unmask import LESS, FirstMask, GenerationConfig, Grammar, JSONSchema, Regex, generate, infill
from unmask.types import BlockGrid

pytest.importorskip("llguidance")

MODEL = writer(*"()ab", "((", "))", "a)", "ba", seed=1)
NESTED = Grammar('start: "(" start ")" | /[ab]+/')
TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
    },
    "required": ["v", "kids"],
    "additionalProperties": False,
}
JSON = writer(*'{}[]":, v15', "kids", '{"v', '":', "]}", "[]", seed=2)
PROMPT = [[2, 3]]


def is_nested(text, *, whole):
    depth = len(text) - len(text.lstrip("("))
    inside = text[depth:].rstrip(")")
    closed = len(text) - depth - len(inside)
    good = set(inside) <= set("ab") and (bool(inside) or not closed) and closed <= depth
    return good and (not whole or (closed == depth and bool(inside)))


@pytest.mark.parametrize("sampler", [LESS(), LESS(policy="frontier"), FirstMask()])
@pytest.mark.parametrize("block_length", [None, 4])
def test_texts_follow_the_grammar_and_those_that_end_are_whole(sampler, block_length):
    if block_length is not None:
        sampler = replace(sampler, block_policy="run") if isinstance(sampler, LESS) else sampler
    ended = 0
    for seed in range(6):
        config = GenerationConfig(
            max_new_tokens=12, constraint=NESTED, block_length=block_length, temperature=seed % 2, seed=seed
        )
        [answer] = generate(replace(MODEL, seed=seed), PROMPT, sampler, config)
        assert is_nested(answer.text, whole=answer.finish == "eos")
        ended += answer.finish == "eos"
    assert ended


def test_a_schema_that_refers_to_itself_is_held_from_the_left():
    for seed in range(4):
        config = GenerationConfig(max_new_tokens=60, constraint=JSONSchema(TREE))
        [answer] = generate(replace(JSON, seed=seed), PROMPT, FirstMask(), config)
        if answer.finish == "eos":
            validate(json.loads(answer.text), TREE)
        assert answer.text.startswith("{")


def test_rows_with_and_without_a_grammar_equal_their_single_runs():
    constraints, prompts = [NESTED, None, NESTED], [[2, 3], [4], [5, 6, 7]]
    config = GenerationConfig(max_new_tokens=9)
    together = generate(MODEL, prompts, FirstMask(), replace(config, constraint=constraints))
    for prompt, constraint, answer in zip(prompts, constraints, together, strict=True):
        assert generate(MODEL, [prompt], FirstMask(), replace(config, constraint=constraint)) == [answer]


class Blockwise(type(MODEL)):
    """The same logits, as of a model that attends block by block."""

    @property
    def info(self):
        return replace(super().info, grid=BlockGrid(length=4), block_length=4)


def test_a_grammar_holds_on_models_with_blocks():
    model = Blockwise(vocab_size=MODEL.vocab_size, words=MODEL.words, seed=4)
    for answer in generate(model, [[2], [2] * 6], FirstMask(), max_new_tokens=7, constraint=NESTED):
        assert is_nested(answer.text, whole=answer.finish == "eos")


def test_the_end_comes_only_where_the_grammar_may_end():
    eager = replace(MODEL, lead=0.0)
    for text in (Grammar('start: "((" "ab" "))"'), Grammar('start: "a" "b"?')):
        [answer] = generate(eager, PROMPT, FirstMask(), max_new_tokens=8, constraint=text)
        assert answer.text in ("((ab))", "a", "ab")
        assert answer.finish == "eos"
        assert END not in answer.token_ids


def test_a_recursive_schema_is_closed_as_a_regular_one_is():
    tree = JSONSchema({"type": "object", "properties": {"v": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}})
    assert json.loads(str(tree.schema))["additionalProperties"] is False
    named = JSONSchema({"type": "object", "properties": {"properties": {"$ref": "#"}}})
    assert json.loads(str(named.schema))["properties"] == {"properties": {"$ref": "#"}}


def test_a_recursive_schema_of_many_parts_is_refused():
    branches = [{"type": "array", "items": {"$ref": "#"}}] * 200
    with raises_field("json_schema"):
        JSONSchema({"anyOf": branches})


@pytest.mark.parametrize("sampler", ["base", "threshold", "klass", "wino", FirstMask(revoke_below=0.2)])
def test_samplers_that_jump_are_refused_by_a_sentence_that_names_others(sampler):
    for constraint in (NESTED, JSONSchema(TREE)):
        with raises_field("constraint") as error:
            generate(MODEL, PROMPT, sampler, constraint=constraint)
        assert "first-mask" in str(error.value)


def test_bad_grammars_and_settings_are_refused():
    for lark in ("start: (", "start: nothing", ""):
        with raises_field("grammar"):
            generate(MODEL, PROMPT, FirstMask(), constraint=Grammar(lark))
    for constraint in (Grammar('start: "ö"'), JSONSchema({"$ref": "#"})):
        with raises_field("constraint"):
            generate(MODEL, PROMPT, FirstMask(), constraint=constraint)
    with raises_field("grammar"):
        Grammar(5)
    with raises_field("grammar", 30_000):
        Grammar("a" * 30_000)
    with raises_field("stop"):
        generate(MODEL, PROMPT, FirstMask(), constraint=NESTED, stop=("a",))
    with raises_field("constraint"):
        generate(MODEL, PROMPT * 2, FirstMask(), constraint=[NESTED, Regex("a")])
    with raises_field("constraint"):
        infill(MODEL, "a[[gap 2]]", FirstMask(), constraint=NESTED)
