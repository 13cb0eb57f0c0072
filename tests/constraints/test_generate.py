"""Texts that always fit: every kind of sampler, full sequence and blocks, batches, gaps."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints.letters import writer
from tests.constraints.schemas import validate
from tests.raises import raises_field
from unmask import (
    SAMPLERS,
    Choice,
    Gap,
    GenerationConfig,
    JSONSchema,
    Regex,
    generate,
    infill,
    make_sampler,
)
from unmask.bench.every_sampler import kinds
from unmask.types import BlockGrid

DIGITS = writer(*"0123456789", "-", "12", "3-4", "x", " ", seed=3)
PHONE = Regex(r"\d{2,3}-\d{3}")
PROMPT = [[2, 3, 4]]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["ä", 1.5, None]}, "maxItems": 2},
    },
    "required": ["name", "n"],
}
JSON = writer(
    *'{}[]":,ä ', "name", "n", "tags", '":', '{"', "1", "-", "0", "5", ".", "null", "x", "\\", seed=5
)


def settings_of(**changes):
    return replace(GenerationConfig(max_new_tokens=12), **changes)


@pytest.mark.parametrize("name", kinds())
@pytest.mark.parametrize("block_length", [None, 4])
def test_every_sampler_writes_texts_that_fit(name, block_length):
    for seed in range(2):
        model = replace(DIGITS, seed=seed)
        config = settings_of(
            constraint=PHONE, block_length=block_length, steps=(6, 12)[seed % 2], temperature=seed / 2, seed=1
        )
        [answer] = generate(model, PROMPT, make_sampler(name), config)
        assert re.fullmatch(PHONE.pattern, answer.text)


@pytest.mark.parametrize("name", ["less", "threshold", "base", "wino"])
def test_json_fits_its_schema(name):
    for seed in range(4):
        config = settings_of(constraint=JSONSchema(SCHEMA), max_new_tokens=40, steps=20)
        [answer] = generate(replace(JSON, seed=seed), PROMPT, make_sampler(name), config)
        validate(json.loads(answer.text), SCHEMA)


def test_rows_with_and_without_a_constraint_equal_their_single_runs():
    constraints = [PHONE, None, Choice(["12", "3-4x"]), Regex("x*")]
    prompts = [[2, 3], [4], [5, 6, 7], [2]]
    together = generate(DIGITS, prompts, config=settings_of(constraint=constraints))
    for prompt, constraint, answer in zip(prompts, constraints, together, strict=True):
        assert generate(DIGITS, [prompt], config=settings_of(constraint=constraint)) == [answer]
    assert generate(DIGITS, prompts, config=settings_of(constraint=constraints), batch_size=3) == together


class Endless(type(DIGITS)):
    """A model that never writes its end token."""

    def predict(self, *args, **settings):
        logits = super().predict(*args, **settings)
        logits[..., 1] = -torch.inf
        return logits


@pytest.mark.parametrize("name", ["less", "base", "klass", "threshold"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pattern_that_allows_everything_changes_no_token(name, temperature):
    model = Endless(vocab_size=DIGITS.vocab_size, words=DIGITS.words)
    free = settings_of(temperature=temperature, seed=7)
    held = replace(free, constraint=Regex(".*"))
    answers = [generate(model, PROMPT * 2, make_sampler(name), config) for config in (free, held)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", kinds())
def test_raw_signals_leave_the_texts_in_the_language(name):
    raw = replace(PHONE, raw=True)
    for seed in range(2):
        config = settings_of(constraint=raw, steps=6, temperature=float(seed), seed=2)
        [answer] = generate(replace(DIGITS, seed=seed), PROMPT, make_sampler(name), config)
        assert re.fullmatch(PHONE.pattern, answer.text)


def test_a_sampler_sees_the_constrained_distribution_unless_it_asks_for_the_raw_one():
    one_way = Regex("x{12}")
    held = generate(DIGITS, PROMPT, make_sampler("threshold"), settings_of(constraint=one_way))
    raw = generate(
        DIGITS, PROMPT, make_sampler("threshold"), settings_of(constraint=replace(one_way, raw=True))
    )
    assert held[0].steps == 1  # nothing else fits, so every position is certain
    assert raw[0].steps > 1
    assert held[0].text == raw[0].text == "x" * 12


def test_lengths_and_stop_strings_hold_too():
    for least in (0, 3, 6):
        config = settings_of(constraint=Regex("[0-9x]*"), min_new_tokens=least, stop=("x", "12"))
        [answer] = generate(DIGITS, PROMPT, make_sampler("threshold"), config)
        assert len(answer.token_ids) >= least
        assert re.fullmatch("[0-9]*", answer.text)
        assert "12" not in answer.text


@pytest.mark.parametrize("name", ["less", "base", "saber", "dawn"])
def test_a_filled_text_fits_as_a_whole(name):
    pattern = Regex(r"1\d-\d{2,4}x+")
    for text in ("1[[gap 1]]-[[gap 2-6]]", ["1", Gap(max=3), Gap(1), Gap(max=5)], "[[gap 0-9]]-12[[gap 2]]"):
        filled = infill(DIGITS, text, make_sampler(name), GenerationConfig(constraint=pattern))
        assert re.fullmatch(pattern.pattern, filled.text)


@settings(max_examples=30)
@given(
    st.sampled_from(["(12|3-4)*", "x{3,}", "[0-9]+(-[0-9]+)*", "(a|1|12x?)+", ""]),
    st.integers(3, 9),
    st.sampled_from(sorted(SAMPLERS)),
    st.integers(0, 99),
)
def test_any_order_of_commits_ends_in_the_language(pattern, length, name, seed):
    config = settings_of(constraint=Regex(pattern), max_new_tokens=length, steps=1 + seed % length)
    [answer] = generate(replace(DIGITS, seed=seed), PROMPT, make_sampler(name), config)
    assert re.fullmatch(pattern, answer.text)


def test_a_canvas_that_is_too_short_is_refused_before_the_first_forward():
    model = replace(DIGITS, calls=[])
    with raises_field("max_new_tokens", 5) as error:
        generate(model, PROMPT, config=settings_of(constraint=Regex("x{8}"), max_new_tokens=5))
    assert "8" in error.value.problem
    with raises_field("constraint"):
        generate(model, PROMPT, config=settings_of(constraint=Regex("x{2}"), min_new_tokens=5))
    with raises_field("constraint"):
        infill(model, "1[[gap 1]]", config=GenerationConfig(constraint=Regex("2.*")))
    with raises_field("constraint"):
        generate(model, PROMPT, config=settings_of(constraint=Regex("ö")))
    assert model.calls == []


class Blockwise(type(DIGITS)):
    """The same model, but it sees no column behind its block."""

    def predict(self, tokens, attend, window, **settings):
        seen = slice(0, window.stop)
        return super().predict(
            tokens[:, seen], None if attend is None else attend[:, seen], window, **settings
        )

    @property
    def info(self):
        return replace(super().info, grid=BlockGrid(length=4), block_length=4, new_tokens=10)


@pytest.mark.parametrize("name", ["less", "threshold", "base", "credit", "wino", "first-mask"])
def test_texts_of_models_with_blocks_fit(name):
    for seed in range(1, 3):
        model = Blockwise(vocab_size=DIGITS.vocab_size, words=DIGITS.words, seed=seed)
        constraints = [PHONE, Regex(r"\d*x"), None]
        prompts = [[2, 3, 4], [5], [2] * 6]  # the block of the first two begins with their prompt
        config = settings_of(max_new_tokens=7 + seed, temperature=seed / 2, seed=1, constraint=constraints)
        answers = generate(model, prompts, make_sampler(name), config)
        for constraint, answer in zip(constraints, answers, strict=True):
            assert constraint is None or re.fullmatch(constraint.pattern, answer.text)
        alone = replace(config, constraint=constraints[0])
        assert generate(model, prompts[:1], make_sampler(name), alone) == answers[:1]


def test_a_text_in_blocks_that_is_too_short_is_refused():
    model = Blockwise(vocab_size=DIGITS.vocab_size, words=DIGITS.words)
    with raises_field("max_new_tokens", 5):
        generate(model, PROMPT, config=settings_of(constraint=Regex("x{6}"), max_new_tokens=5))
    [answer] = generate(model, PROMPT, config=settings_of(constraint=Regex("x{6}"), max_new_tokens=6))
    assert answer.text == "x" * 6


def test_a_trace_says_which_tokens_the_constraint_held_back():
    config = settings_of(constraint=Regex("(12x|3-4)+"), steps=2)
    [answer] = generate(DIGITS, PROMPT, make_sampler("base"), config, trace=True)
    held = [place for change in answer.trace.changes for row in change.held for place in row]
    assert any(place.signals["constraint"] for place in held)
    assert not any(place.eligible for place in held if place.signals["constraint"])
    [free] = generate(DIGITS, PROMPT, make_sampler("base"), settings_of(steps=2), trace=True)
    assert all(
        "constraint" not in place.signals for change in free.trace.changes for place in change.positions
    )
