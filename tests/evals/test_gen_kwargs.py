"""What a request of lm-eval asks for, as a GenerationConfig."""

from __future__ import annotations

from typing import Any

import pytest

from tests.raises import raises_field
from unmask import Choice, GenerationConfig, JSONSchema, Regex
from unmask.evals.gen_kwargs import default_config, request_config

DEFAULT = GenerationConfig(max_new_tokens=64, steps=64, block_length=32, temperature=0.4)


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ({}, {}),
        ({"until": "\n"}, {"stop": ("\n",)}),
        ({"until": ["\n", "", "Q:"]}, {"stop": ("\n", "Q:")}),
        ({"max_gen_toks": 80}, {"max_new_tokens": 80}),
        ({"max_tokens": 80, "max_gen_toks": None}, {"max_new_tokens": 80}),
        ({"max_tokens": 80, "max_gen_toks": 90}, {"max_new_tokens": 90}),
        ({"max_gen_toks": 20}, {"max_new_tokens": 20, "block_length": 20}),
        ({"do_sample": False, "temperature": 1}, {"temperature": 0.0}),
        ({"do_sample": True, "temperature": 0.7}, {"temperature": 0.7}),
        ({"do_sample": True}, {"temperature": 0.4}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_p": 0.9, "top_k": 5, "seed": 3}, {"top_p": 0.9, "top_k": 5, "seed": 3}),
        ({"steps": "none", "block_length": "auto"}, {"steps": None, "block_length": "auto"}),
        ({"end_tokens": "last", "min_gap": "auto"}, {"end_tokens": "last", "min_gap": "auto"}),
        ({"num_beams": 1, "repetition_penalty": 1.0}, {}),
        ({"regex": "[A-D]"}, {"constraint": Regex("[A-D]")}),
        ({"choice": "A|B"}, {"constraint": Choice(("A", "B"))}),
        ({"choice": ["yes", "no"], "until": None}, {"constraint": Choice(("yes", "no"))}),
        ({"json_schema": {"type": "null"}, "regex": None}, {"constraint": JSONSchema({"type": "null"})}),
    ],
    ids=str,
)
def test_a_request_changes_what_it_names(asked: dict[str, Any], changes: dict[str, Any]) -> None:
    expected = {"max_new_tokens": 64, "steps": 64, "block_length": 32, "temperature": 0.4, **changes}
    assert request_config(DEFAULT, asked) == GenerationConfig(**expected)


def test_sampling_without_a_temperature_anywhere_is_at_one() -> None:
    assert request_config(GenerationConfig(), {"do_sample": True}).temperature == 1.0


@pytest.mark.parametrize(
    ("asked", "field", "value", "words"),
    [
        ({"temprature": 1}, "temprature", 1, "did you mean 'temperature'?"),
        ({"num_beams": 10}, "num_beams", 10, "pass --gen_kwargs num_beams=1"),
        ({"regex": "a", "choice": "b"}, "choice", "b", "regex"),
        ({"regex": "("}, "regex", "(", "regular expression"),
        ({"max_gen_toks": 0}, "max_new_tokens", 0, ">= 1"),
        ({"temperature": -1}, "temperature", -1.0, ">= 0"),
    ],
)
def test_what_a_masked_model_cannot_do_is_refused(
    asked: dict[str, Any], field: str, value: Any, words: str
) -> None:
    with raises_field(field, value, words):
        request_config(DEFAULT, asked)


def test_model_arguments_become_settings() -> None:
    settings = {"steps": 8, "max_new_tokens": 16, "block_length": "none", "cache": "None"}
    assert default_config(settings) == GenerationConfig(steps=8, max_new_tokens=16, block_length=None)


@pytest.mark.parametrize("name", ["step", "stop", "max_gen_toks"])
def test_unknown_model_arguments_are_refused(name: str) -> None:
    with raises_field(name, 8, "available: ", "steps"):
        default_config({name: 8})
