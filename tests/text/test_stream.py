"""Streaming gives the text of generate, piece by piece, and stop strings end both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raises import raises_field
from tests.text.scripted import EOS, TOKENIZER, Scripted, saying
from tests.text.test_generate import PROMPTS, short, without_tokenizer
from unmask import LESS, SAMPLERS, Threshold
from unmask.models.trunk import Trunk
from unmask.text.config import GenerationConfig
from unmask.text.end_of_text import Ending
from unmask.text.generate import generate
from unmask.text.stream import Chunk, stream

ONE_BY_ONE = Threshold(min_confidence=1)  # the most confident position of every step


def chunks_of(model: Any, **settings: Any) -> list[Chunk]:
    config = GenerationConfig(max_new_tokens=len(model.script), **settings)
    return list(stream(model, "p", ONE_BY_ONE, config))


def texts(chunks: list[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks if chunk.text]


@pytest.mark.parametrize("name", ["less", "base", "klass", "prophet", "threshold", "less-policy-all"])
@pytest.mark.parametrize("stop", [(), ("dc", "i", "\ufffd\ufffd")], ids=str)
def test_the_stream_adds_up_to_the_generation(model: Trunk, name: str, stop: tuple[str, ...]) -> None:
    config = short(model, stop=stop)
    for prompt in PROMPTS[:3]:
        chunks = list(stream(model, prompt, SAMPLERS[name], config))
        [expected] = generate(model, [prompt], SAMPLERS[name], config)
        assert "".join(chunk.text for chunk in chunks) == expected.text
        assert chunks[-1].generation == expected
        assert all(chunk.generation is None for chunk in chunks[:-1])


def test_a_stream_of_a_model_without_a_tokenizer_ends_with_the_token_ids() -> None:
    model, config = without_tokenizer("llada_tiny"), GenerationConfig(max_new_tokens=8)
    [expected] = generate(model, [[7, 42]], config=config)
    assert [chunk.generation for chunk in stream(model, [7, 42], config=config)] == [expected]
    assert len(expected.token_ids) == 8
    drafts = [chunk.draft for chunk in stream(model, [7, 42], ONE_BY_ONE, config, drafts=True)]
    assert drafts[0] == "░" * 7


def test_text_comes_as_soon_as_nothing_left_of_it_is_masked() -> None:
    chunks = chunks_of(saying("xyz", order=(1, 0, 2, 3)))
    assert texts(chunks) == ["xy", "z"]
    assert chunks[-1].generation is not None
    assert chunks[-1].generation.finish == "eos"


def test_a_character_of_several_tokens_comes_whole() -> None:
    text = "é 漢 🙂!"
    assert texts(chunks_of(saying(text))) == list(text)


def test_an_incomplete_character_at_the_end_comes_last() -> None:
    script = [*TOKENIZER.encode("a"), *TOKENIZER.encode("é")[:1]]
    assert texts(chunks_of(Scripted(script))) == ["a", "\ufffd"]


def test_drafts_show_the_whole_canvas() -> None:
    model = saying("xyz", order=(0, 2, 1, 3), ends=False)
    config = GenerationConfig(max_new_tokens=3)
    chunks = list(stream(model, "p", ONE_BY_ONE, config, drafts=True, placeholder="_"))
    assert [(chunk.text, chunk.draft, chunk.step) for chunk in chunks] == [
        ("x", "__", 1),
        ("", "_z", 2),
        ("yz", "", 3),
        ("", "", 3),
    ]


def test_drafts_end_where_the_text_would_end() -> None:
    model = Scripted([*TOKENIZER.encode("xyz"), EOS, EOS], order=(4, 3, 2, 1, 0))
    config = GenerationConfig(max_new_tokens=5, stop=("z",))
    chunks = list(stream(model, "p", ONE_BY_ONE, config, drafts=True, placeholder="_"))
    assert [chunk.draft for chunk in chunks] == ["____", "___", "__", "_y", "", ""]
    assert [chunk.text for chunk in chunks] == ["", "", "", "", "xy", ""]


def test_wrong_settings_fail_at_the_call_and_not_at_the_first_chunk() -> None:
    with raises_field("prompts", ""):
        stream(saying("x"), "")


def test_a_stop_string_ends_the_text_and_the_decoding() -> None:
    model = saying("one, two. three and four")
    config = GenerationConfig(max_new_tokens=len(model.script))
    [full] = generate(model, ["p"], ONE_BY_ONE, config)
    [out] = generate(model, ["p"], ONE_BY_ONE, replace(config, stop=("two", ". ")))
    assert (out.text, out.finish) == ("one, ", "stop")
    assert out.steps < full.steps / 2
    assert TOKENIZER.decode(out.token_ids).startswith(out.text)
    assert not TOKENIZER.decode(out.token_ids[:-1]).startswith(out.text)


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    assert texts(chunks_of(saying("a##b###c"), stop=("###",))) == ["a", "##b"]
    assert texts(chunks_of(saying("a#"), stop=("###",))) == ["a", "#"]


def test_an_end_token_before_the_stop_string_wins() -> None:
    script = [*TOKENIZER.encode("ab"), EOS, *TOKENIZER.encode("!c")]
    [out] = generate(Scripted(script), ["p"], LESS(), GenerationConfig(max_new_tokens=5, stop=("!",)))
    assert (out.text, out.finish) == ("ab", "eos")


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    [out] = generate(saying("ab"), ["!"], LESS(), GenerationConfig(max_new_tokens=3, stop=("!",)))
    assert (out.text, out.finish) == ("ab", "eos")


def test_a_stop_string_waits_until_nothing_left_of_it_is_masked() -> None:
    model = saying("x!z", order=(3, 0, 1, 2))
    batch = generate(model, ["p"], ONE_BY_ONE, GenerationConfig(max_new_tokens=4, stop=("!",)))
    assert (batch[0].text, batch[0].finish) == ("x", "stop")


def test_rows_stop_by_themselves(model: Trunk) -> None:
    config = short(model)
    full = generate(model, PROMPTS, config=config)
    stops = tuple({row.text[4:6] for row in full[:2]})
    stopped = generate(model, PROMPTS, config=replace(config, stop=stops))
    for before, after in zip(full, stopped, strict=True):
        found = [at for at in (before.text.find(stop) for stop in stops) if at >= 0]
        assert (after.finish == "stop") == bool(found)
        assert after.text == (before.text[: min(found)] if found else before.text)
        assert after.steps <= before.steps
    assert stopped[0].finish == stopped[1].finish == "stop"


@settings(max_examples=40, deadline=None)
@given(st.text("ab€", min_size=1, max_size=8), st.lists(st.text("ab€", min_size=1, max_size=3)), st.randoms())
def test_any_text_in_any_order_with_any_stop_strings(text: str, stops: list[str], random: Any) -> None:
    model = saying(text)
    model.order = random.sample(range(len(model.script)), len(model.script))
    config = GenerationConfig(max_new_tokens=len(model.script), stop=tuple(stops[:2]))
    sampler = random.choice([ONE_BY_ONE, Threshold(min_confidence=0.9), LESS()])
    chunks = list(stream(model, "p", sampler, config))
    [expected] = generate(model, ["p"], sampler, config)
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert chunks[-1].generation == expected
    if len(config.stop) <= 1:
        at = text.find(config.stop[0]) if config.stop else -1
        assert expected.text == (text if at < 0 else text[:at])


@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_was_sendable_is_never_taken_back(text: str, stops: list[str]) -> None:
    ending = Ending(TOKENIZER, 509, (EOS,), tuple(stops))
    sent = 0
    for length in range(len(text) + 1):
        assert ending.sendable(text[:length]) >= sent
        sent = ending.sendable(text[:length])
        if ending.first_stop(text[:length]) is not None:
            return
