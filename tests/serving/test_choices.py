"""The settings of a request over those of the server."""

from __future__ import annotations

from typing import Any

import pytest

from unmask import GenerationConfig
from unmask.serving.choices import choose
from unmask.serving.protocol import CompletionRequest, parse
from unmask.serving.settings import Settings

SERVER = GenerationConfig(max_new_tokens=64, temperature=0.5, cache="dual", refresh_every=4)


def config_of(body: dict[str, Any]) -> GenerationConfig:
    request = parse(CompletionRequest, {"prompt": "hello", **body})
    return choose(request, Settings(config=SERVER)).config


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        ({}, {}),
        ({"max_tokens": 8, "min_tokens": 2}, {"max_new_tokens": 8, "min_new_tokens": 2}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"block_length": "none", "steps": 9}, {"block_length": None, "steps": 9}),
        ({"block_length": "auto", "top_k": 3}, {"block_length": "auto", "top_k": 3}),
        ({"cache": "prefix"}, {"cache": "prefix"}),
        ({"cache": "none"}, {"cache": None, "refresh_every": None}),
        ({"refresh_every": 2}, {"refresh_every": 2}),
    ],
    ids=str,
)
def test_a_request_changes_the_settings_that_it_names(body, changes):
    assert config_of(body) == GenerationConfig(
        **{"max_new_tokens": 64, "temperature": 0.5, "cache": "dual", "refresh_every": 4, **changes}
    )
