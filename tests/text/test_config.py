"""Every field of GenerationConfig is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.raises import raises_field
from unmask import KLASS, LESS, Base, EndLast, Spaced
from unmask.text.config import GenerationConfig
from unmask.types import ModelInfo

INFO = ModelInfo(vocab_size=512, mask_id=509, eos_ids=(500, 503), block_length=64)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_new_tokens", 0, ">= 1"),
        ("max_new_tokens", 2.5, "a whole number"),
        ("max_new_tokens", True, "a whole number"),
        ("steps", 0, ">= 1"),
        ("block_length", 0, ">= 1"),
        ("block_length", "half", "auto"),
        ("temperature", -1.0, ">= 0"),
        ("temperature", float("nan"), ">= 0"),
        ("temperature", "hot", ">= 0"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_k", -1, ">= 0"),
        ("seed", -1, ">= 0"),
        ("seed", "one", "a whole number"),
        ("guidance", -0.5, ">= 0"),
        ("stop", "\n", r"stop=('\n',)"),
        ("stop", 3, "a tuple of strings"),
        ("stop_at_eos", 1, "True or False"),
        ("reuse", "no", "True or False"),
        ("end_tokens", "drop", "keep, suppress, demote, last"),
        ("min_gap", 0, ">= 1"),
        ("min_gap", "wide", "auto"),
        ("cache", "block", "prefix, dual"),
        ("refresh_every", 2, "cache='prefix'"),
        ("refresh_every", 0, ">= 1"),
    ],
)
def test_a_field_out_of_range_is_refused(field: str, value: Any, allowed: str) -> None:
    with raises_field(field, value, allowed):
        GenerationConfig(**{field: value})


def test_the_bad_one_of_several_values_is_named() -> None:
    with raises_field("seed", 2**63):
        GenerationConfig(seed=[1, 2**63])
    with raises_field("stop", ""):
        GenerationConfig(stop=("a", ""))


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    with raises_field("min_new_tokens", 9, "at most the number of new tokens, 8"):
        GenerationConfig(max_new_tokens=8, min_new_tokens=9)
    model = ModelInfo(vocab_size=8, mask_id=7, new_tokens=16)
    with raises_field("min_new_tokens", 17, "16"):
        GenerationConfig(min_new_tokens=17).new_tokens(model)


def test_the_length_is_the_models_own_unless_given() -> None:
    model = ModelInfo(vocab_size=8, mask_id=7, new_tokens=16)
    assert GenerationConfig().new_tokens(model) == 16
    assert GenerationConfig(max_new_tokens=4).new_tokens(model) == 4
    assert GenerationConfig().new_tokens(ModelInfo(vocab_size=8, mask_id=7)) == 256


def test_lists_are_frozen_too() -> None:
    config = GenerationConfig(seed=[1, 2], stop=["a"])  # type: ignore[arg-type]
    assert (config.seed, config.stop) == ((1, 2), ("a",))
    assert hash(config) == hash(GenerationConfig(seed=(1, 2), stop=("a",)))


def test_auto_is_the_familys_block_but_never_longer_than_the_generation() -> None:
    config = GenerationConfig()
    assert config.block_size(INFO, 256) == 64
    assert config.block_size(INFO, 24) == 24
    assert config.block_size(ModelInfo(vocab_size=2, mask_id=1), 256) is None
    assert GenerationConfig(block_length=None).block_size(INFO, 256) is None


def test_one_seed_goes_to_every_row() -> None:
    assert GenerationConfig(seed=7).seeds(3) == (7, 7, 7)
    with raises_field("seed", (1, 2), "3 prompts"):
        GenerationConfig(seed=(1, 2)).seeds(3)


def test_suppressing_bans_the_end_of_text_and_leaves_the_end_of_a_turn() -> None:
    assert GenerationConfig(end_tokens="suppress").options(INFO).banned_ids == (509, 500)


def test_demoting_is_a_setting_of_base() -> None:
    config = GenerationConfig(end_tokens="demote")
    assert config.fit(Base(), INFO) == Base(demoted_ids=(500, 503))
    with raises_field("end_tokens", "demote", "'base'", "LESS("):
        config.fit(LESS(), INFO)
    with raises_field("end_tokens", "demote", "'confidence'", "Base("):
        config.fit(Base(order="random"), INFO)


def test_the_end_rule_goes_around_the_spacing_filter_around_the_sampler() -> None:
    config = GenerationConfig(end_tokens="last", min_gap=3)
    assert config.fit(LESS(), INFO) == EndLast(Spaced(LESS(), gap=3))
    assert config.fit(EndLast(LESS()), INFO) == EndLast(Spaced(LESS(), gap=3))
    assert GenerationConfig(min_gap="auto").fit(LESS(), INFO) == Spaced(LESS())
    assert GenerationConfig(min_gap=2).fit(EndLast(LESS()), INFO) == EndLast(Spaced(LESS(), gap=2))
    assert GenerationConfig().fit(LESS(), INFO) == LESS()


def test_settings_of_base_reach_one_inside_another_sampler() -> None:
    config = GenerationConfig(end_tokens="demote", temperature=0.5)
    dream = replace(INFO, schedule="dream")
    fitted = Base(demoted_ids=(500, 503), temperature=0.5)
    assert config.fit(Spaced(Base()), dream) == Spaced(fitted)


def test_a_cache_of_one_block_is_refused_for_a_sampler_that_looks_further() -> None:
    config = GenerationConfig(cache="dual")
    with raises_field("cache", "dual", "KLASS", "cache='prefix'"):
        config.new_cache(KLASS(), INFO, blocks=2)
    assert config.new_cache(KLASS(), INFO, blocks=1) is not None


def test_dreams_own_base_ranks_by_what_the_filters_leave() -> None:
    config = GenerationConfig(temperature=0.2, top_p=0.95)
    dream = ModelInfo(vocab_size=9, mask_id=0, schedule="dream")
    assert config.fit(Base(), dream) == Base(temperature=0.2, top_p=0.95)
    assert config.fit(Base(temperature=0.7), dream) == Base(temperature=0.7)
    assert config.fit(Base(), ModelInfo(vocab_size=9, mask_id=0)) == Base()
    assert config.fit(LESS(), dream) == LESS()
