"""Every field of GenerationConfig is checked, and says so in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from unmask import KLASS, LESS, Base
from unmask.text.config import GenerationConfig
from unmask.types import ModelInfo

INFO = ModelInfo(vocab_size=512, mask_id=509, eos_ids=(500, 503), block_length=64)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("max_new_tokens", 0, "max_new_tokens must be a whole number >= 1, got 0"),
        ("max_new_tokens", 2.5, "max_new_tokens must be a whole number >= 1, got 2.5"),
        ("max_new_tokens", True, "max_new_tokens must be a whole number >= 1, got True"),
        ("steps", 0, "steps must be a whole number >= 1, got 0"),
        ("block_length", 0, "block_length must be a whole number >= 1, got 0"),
        ("block_length", "half", "block_length must be one of auto; got 'half'"),
        ("temperature", -1.0, "temperature must be >= 0 and finite, got -1.0"),
        ("temperature", float("nan"), "temperature must be >= 0 and finite, got nan"),
        ("temperature", "hot", "temperature must be >= 0 and finite, got 'hot'"),
        ("top_p", 0.0, r"top_p must be in \(0, 1\], got 0.0"),
        ("top_k", -1, "top_k must be a whole number >= 0, got -1"),
        ("seed", -1, "seed must be a whole number >= 0, got -1"),
        ("seed", "one", "seed must be a whole number >= 0, got 'one'"),
        ("seed", [1, 2**63], "seed must be below 2"),
        ("guidance", -0.5, "guidance must be >= 0 and finite, got -0.5"),
        ("stop", "\n", r"stop must be a tuple of strings, got one string; write stop=\('\\n',\)"),
        ("stop", ("a", ""), "stop must hold strings of at least one character, got ''"),
        ("stop", 3, "stop must be a tuple of strings, got 3"),
        ("stop_at_eos", 1, "stop_at_eos must be True or False, got 1"),
        ("reuse", "no", "reuse must be True or False, got 'no'"),
        ("end_tokens", "drop", "end_tokens must be one of keep, suppress, demote; got 'drop'"),
        ("cache", "block", "cache must be one of prefix, dual; got 'block'"),
        ("refresh_every", 2, "refresh_every needs a cache; set cache='prefix' or cache='dual'"),
        ("refresh_every", 0, "refresh_every must be a whole number >= 1, got 0"),
    ],
)
def test_a_field_out_of_range_is_refused(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GenerationConfig(**{field: value})


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    with pytest.raises(ValueError, match="min_new_tokens must be at most max_new_tokens, 8; got 9"):
        GenerationConfig(max_new_tokens=8, min_new_tokens=9)
    model = ModelInfo(vocab_size=8, mask_id=7, new_tokens=16)
    with pytest.raises(ValueError, match="min_new_tokens must be at most max_new_tokens, 16; got 17"):
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
    with pytest.raises(ValueError, match="seed must be one number or one per prompt: got 2 for 3"):
        GenerationConfig(seed=(1, 2)).seeds(3)


def test_suppressing_bans_the_end_of_text_and_leaves_the_end_of_a_turn() -> None:
    assert GenerationConfig(end_tokens="suppress").options(INFO).banned_ids == (509, 500)


def test_demoting_is_a_setting_of_base() -> None:
    config = GenerationConfig(end_tokens="demote")
    assert config.fit(Base(), INFO) == Base(demoted_ids=(500, 503))
    with pytest.raises(ValueError, match="end_tokens='demote' needs the sampler 'base' in the order 'conf"):
        config.fit(LESS(), INFO)
    with pytest.raises(ValueError, match="order 'confidence', got Base"):
        config.fit(Base(order="random"), INFO)


def test_a_cache_of_one_block_is_refused_for_a_sampler_that_looks_further() -> None:
    config = GenerationConfig(cache="dual")
    with pytest.raises(ValueError, match="KLASS looks at the whole generation, but cache='dual'"):
        config.new_cache(KLASS(), blocks=2)
    assert config.new_cache(KLASS(), blocks=1) is not None


def test_dreams_own_base_ranks_by_what_the_filters_leave() -> None:
    config = GenerationConfig(temperature=0.2, top_p=0.95)
    dream = ModelInfo(vocab_size=9, mask_id=0, schedule="dream")
    assert config.fit(Base(), dream) == Base(temperature=0.2, top_p=0.95)
    assert config.fit(Base(temperature=0.7), dream) == Base(temperature=0.7)
    assert config.fit(Base(), ModelInfo(vocab_size=9, mask_id=0)) == Base()
    assert config.fit(LESS(), dream) == LESS()
