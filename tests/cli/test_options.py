"""Options agree with what they set: GenerationConfig and the dataclass of every sampler."""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from typing import get_type_hints

import pytest

from tests.raises import raises_field
from unmask import LESS, SAMPLERS, GenerationConfig, generate, infill, make_sampler, stream
from unmask.catalog import DEFAULT_SAMPLER_NAME, PRESETS
from unmask.cli.fields import describe, parse, parse_fields
from unmask.cli.options import (
    ConstraintOptions,
    DecodingOptions,
    LengthOptions,
    SamplerOptions,
    build_config,
)
from unmask.cli.serve import LimitOptions
from unmask.describe import field_lines
from unmask.evals import evaluate
from unmask.samplers.wrapper import layers, settings
from unmask.serving import Engine
from unmask.serving.limits import Limits
from unmask.serving.protocol import Common
from unmask.serving.settings import Settings
from unmask.text.generate import DEFAULT_SAMPLER

# internal: neither ever changes a text
NO_OPTION = {"stop_at_eos", "reuse"}
HTTP_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
CONSTRAINTS = {"regex", "json_schema", "choices", "grammar"}  # one setting, four options
SETTINGS = {item.name for item in fields(GenerationConfig)} - NO_OPTION - {"constraint"}


def test_every_setting_of_a_generation_has_an_option_and_a_field_in_requests():
    options = {item.name for group in (DecodingOptions, LengthOptions) for item in fields(group)}
    assert options == SETTINGS
    assert {item.name for item in fields(ConstraintOptions)} == CONSTRAINTS
    assert {"regex", "response_format", "choice"} <= set(Common.model_fields)
    assert {HTTP_NAMES.get(name, name) for name in SETTINGS} <= set(Common.model_fields)


@pytest.mark.parametrize("command", ["generate", "chat", "infill", "compare", "eval", "reproduce", "serve"])
def test_every_command_that_decodes_can_compile_and_cache(call, command):
    words = call(command, "--help").stdout.split()
    assert {"--compile", "--cache", "--refresh-every"} <= set(words)


def test_the_help_of_an_option_leaves_out_what_only_python_takes():
    for hint in get_type_hints(DecodingOptions, include_extras=True).values():
        [option] = hint.__metadata__
        assert "sequence:" not in option.help
        assert "None" not in option.help


def test_a_text_with_gaps_takes_no_grammar(call):
    assert "--grammar" in call("generate", "--help").stdout
    assert "--grammar" not in call("infill", "--help").stdout


def test_the_help_page_shows_the_defaults_of_the_config():
    for name, hint in get_type_hints(DecodingOptions, include_extras=True).items():
        [option] = hint.__metadata__
        default = getattr(GenerationConfig(), name)
        assert default is None or option.show_default == str(default)
        assert option.show_default != "None"


def test_the_help_page_of_serve_shows_the_defaults_of_the_engine():
    limits, settings = Limits(), Settings()
    for name, hint in get_type_hints(LimitOptions, include_extras=True).items():
        [option] = hint.__metadata__
        own = "max_rows" if name == "max_batch" else name
        owner = limits if hasattr(limits, own) else settings
        default = getattr(owner, own)
        assert option.show_default != "None"
        assert default is None or float(option.show_default) == default


def test_the_help_page_explains_a_setting_as_its_docstring_does(call):
    words = " ".join(call("generate", "--help").stdout.replace("│", " ").split())
    lines = field_lines(GenerationConfig)
    for name in ("guidance", "temperature", "stop"):
        assert lines[name] in words
    assert "--set top_k" in words  # another thing than --top-k


def test_options_left_out_keep_the_defaults_of_the_config():
    assert build_config(DecodingOptions(), LengthOptions()) == GenerationConfig()


def test_options_win_over_the_defaults_of_a_task():
    length = LengthOptions()
    assert build_config(length, max_new_tokens=8, stop=("a",)) == GenerationConfig(
        max_new_tokens=8, stop=("a",)
    )
    length = replace(length, max_new_tokens=4, stop=["b"])
    assert build_config(length, max_new_tokens=8, stop=("a",)) == GenerationConfig(
        max_new_tokens=4, stop=("b",)
    )


def test_python_the_commands_and_the_server_share_the_default_sampler_which_recommended_names():
    assert DEFAULT_SAMPLER == SAMPLERS[DEFAULT_SAMPLER_NAME] == SAMPLERS["recommended"]
    for decode in (generate, stream, infill, evaluate, Engine.submit, Engine.submit_infill):
        assert signature(decode).parameters["sampler"].default == DEFAULT_SAMPLER
    assert SamplerOptions().build() == Settings().sampler == DEFAULT_SAMPLER
    assert SamplerOptions().name == Settings().sampler_name == DEFAULT_SAMPLER_NAME


def test_the_default_sampler_can_be_served_and_comes_first_in_the_list():
    assert DEFAULT_SAMPLER_NAME in Settings().servable
    assert next(iter(SAMPLERS)) == next(iter(PRESETS)) == DEFAULT_SAMPLER_NAME


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_field_of_every_sampler_can_be_set(name):
    sampler = SAMPLERS[name]
    for field, kind in settings(sampler).items():
        value = next(getattr(layer, field) for layer in layers(sampler) if hasattr(layer, field))
        parsed = parse(field, kind, written(value))
        assert make_sampler(name, **{field: parsed}) == sampler
        assert describe(kind)


def written(value: object) -> str:
    """A value as a user writes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    presets = [name for name, sampler in SAMPLERS.items() if sampler == value]
    return presets[0] if presets else str(value)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("less", "max_jsd=inf", float("inf")),
        ("less", "max_jsd=1e-3", 1e-3),
        ("less", "top_k=4", 4),
        ("less", "exact=False", False),
        ("less", "exact=yes", True),
        ("less", "policy=all", "all"),
        ("base", "demoted_ids=3,5", (3, 5)),
        ("base", "demoted_ids=", ()),
        ("prophet", "answer_start=none", None),
        ("prophet", "answer_start=12", 12),
        ("prophet", "base=base-entropy", SAMPLERS["base-entropy"]),
        ("threshold", "fallback=first", "first"),
        ("threshold", "fallback=2", 2),
        ("less", "fallback=none", None),
        ("less-first-mask", "max_jsd=0.1", 0.1),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(name, setting, value):
    assert parse_fields(SAMPLERS[name], [setting]) == {setting.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("name", "setting", "field", "value"),
    [
        ("less", "top_k=4.5", "top_k", "4.5"),
        ("less", "policy=best", "policy", "best"),
        ("prophet", "answer_start=x", "answer_start", "x"),
        ("prophet", "base=less", "base", "less"),
        ("base", "demoted_ids=a", "demoted_ids", "a"),
        ("less", "=3", "--set", "=3"),
        ("klass", "fallback=last", "fallback", "last"),
        ("less-first-mask", "top_k=4.5", "top_k", "4.5"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name, setting, field, value):
    with raises_field(field, value):
        parse_fields(SAMPLERS[name], [setting])


def test_the_samplers_command_lists_every_preset_and_field(call):
    result = call("samplers")
    assert result.exit_code == 0
    for name, sampler in SAMPLERS.items():
        assert name in result.stdout
        fields = call("samplers", name).stdout
        assert all(field in fields for field in settings(sampler))


def test_the_samplers_command_cuts_no_word_at_80_columns(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = call("samplers", "base")
    assert "confidence_eos_eot_inf" in result.stdout
    assert "…" not in result.stdout


def test_the_samplers_command_speaks_json_and_takes_a_name(lines, call):
    [described] = lines("samplers")
    assert list(described) == list(SAMPLERS)
    patience = described["less-paper"]["patience"]
    assert (patience["value"], patience["type"], patience["changed"]) == (2, "int", True)
    assert patience["about"] == field_lines(LESS)["patience"]
    assert described["less-no-jsd"]["max_jsd"]["value"] == "inf"
    first_mask = described["less-first-mask"]
    assert first_mask["max_jsd"] == described["less"]["max_jsd"]
    assert (first_mask["fallback"]["value"], first_mask["fallback"]["changed"]) == ("first", True)
    [one] = lines("samplers", "less")
    assert one == {"less": described["less"]}
    assert "did you mean 'less'" in call("samplers", "les").stderr


def test_brackets_in_the_words_of_a_sampler_are_only_text(call, monkeypatch):
    class Own(LESS):
        """Commit [/bold] positions."""

    monkeypatch.setitem(SAMPLERS, "own", Own())
    for arguments in (("samplers",), ("samplers", "own")):
        assert "Commit [/bold] positions." in call(*arguments).stdout
