"""Text in, text out on the tiny checkpoints."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.conftest import GOLDENS
from tests.raises import ANYTHING, raises_field
from tests.text.scripted import EOS, MASK, TOKENIZER, Foreign, Scripted, saying
from tests.toy import Toy
from unmask import LESS, SAMPLERS, Base
from unmask.bench.every_sampler import kinds
from unmask.models import load
from unmask.models.trunk import Trunk
from unmask.text.config import GenerationConfig
from unmask.text.generate import Generation, generate, prepare
from unmask.text.infill import infill
from unmask.text.stream import stream
from unmask.trace import count, replay
from unmask.trace.html import to_html

PROMPTS = [
    "the",
    "a longer prompt than the others here",
    "123 + 456 =",
    "Größe, café",
    "def add(a, b):\n    return",
    "x",
    "one two three four five six",
    "ho ho",
]
CHAT = [{"role": "user", "content": "hello"}]
# fewer steps than tokens, and for LLaDA several blocks, so that budgets run out and rows wait for each other
SHORT = GenerationConfig(max_new_tokens=24, steps=12)
BLOCKS = {"llada": 8, "Dream": None}


def short(model: Trunk, **changes: Any) -> GenerationConfig:
    return replace(SHORT, block_length=BLOCKS[str(model.config["model_type"])], **changes)


def without_tokenizer(name: str) -> Trunk:
    return load(GOLDENS / name, device="cpu", dtype="float32")


def singles(
    model: Trunk, sampler: Any, config: GenerationConfig, part: slice = slice(None)
) -> list[Generation]:
    seeds = config.seeds(len(PROMPTS[part]))
    return [
        generate(model, [prompt], sampler, replace(config, seed=seed))[0]
        for prompt, seed in zip(PROMPTS[part], seeds, strict=True)
    ]


@pytest.mark.parametrize("name", kinds())
def test_a_batch_equals_single_calls(model: Trunk, name: str) -> None:
    config, sampler = short(model, max_new_tokens=16, steps=8), SAMPLERS[name]
    part = slice(len(name) % 3, None, 3)  # not the same prompts for all
    assert generate(model, PROMPTS[part], sampler, config) == singles(model, sampler, config, part)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.8, "top_p": 0.95, "seed": tuple(range(4))},
        {"guidance": 0.5},
        {"cache": "prefix"},
        {"cache": "dual", "refresh_every": 3},
        {"stop": ("d", "\ufffd\ufffd"), "min_new_tokens": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["less-paper", "base-origin"])
def test_the_same_under_other_settings(model: Trunk, name: str, changes: dict[str, Any]) -> None:
    config, sampler = short(model, **changes), SAMPLERS[name]
    part = slice(None, 8, 2)
    assert generate(model, PROMPTS[part], sampler, config) == singles(model, sampler, config, part)


def test_the_batch_size_changes_nothing(model: Trunk) -> None:
    config = short(model, temperature=1.0, seed=tuple(range(8)))
    assert generate(model, PROMPTS, config=config, batch_size=3) == generate(model, PROMPTS, config=config)


def test_a_seed_repeats_a_text_and_another_changes_it(model: Trunk) -> None:
    config = short(model, temperature=1.0, seed=(5, 6, 5))
    first, second, third = generate(model, ["the"] * 3, config=config)
    assert first == third
    assert first.text != second.text
    assert generate(model, ["the", "the"], config=replace(config, seed=5)) == [first, first]


def test_prompts_of_every_kind_in_one_batch(model: Trunk) -> None:
    tokenizer: Any = model.tokenizer
    mixed = ["hello", CHAT, tokenizer.encode("hello"), tuple(tokenizer.chat(CHAT))]
    text, chat, text_ids, chat_ids = generate(model, mixed, config=short(model))
    assert text == text_ids
    assert chat == chat_ids
    assert chat.prompt_tokens == len(tokenizer.chat(CHAT)) > text.prompt_tokens == len(mixed[2])


def test_text_and_tokens_agree(model: Trunk) -> None:
    tokenizer: Any = model.tokenizer
    for generation in generate(model, PROMPTS, config=short(model)):
        assert tokenizer.decode(generation.token_ids) == generation.text
        assert not {*model.info.eos_ids, model.info.mask_id} & set(generation.token_ids)
        assert (generation.finish == "length") == (len(generation.token_ids) == 24)
        assert 0 <= generation.forced_share <= 1
        assert generation.steps <= 12
        assert generation.forwards <= generation.steps + 3  # a block may fill its leftovers with one more


def test_refreshing_a_cache_at_every_step_is_no_cache(model: Trunk) -> None:
    config = short(model, reuse=False)
    expected = generate(model, PROMPTS, config=config)
    assert generate(model, PROMPTS, config=replace(config, cache="dual", refresh_every=1)) == expected


def test_decoding_behind_the_end_costs_steps_and_changes_no_text(calm: Trunk) -> None:
    config = GenerationConfig(max_new_tokens=24)
    stopping = generate(calm, PROMPTS, config=config)
    going_on = generate(calm, PROMPTS, config=replace(config, stop_at_eos=False))
    assert [row.text for row in stopping] == [row.text for row in going_on]
    assert [row.finish for row in stopping] == [row.finish for row in going_on]
    ended = [n for n, row in enumerate(stopping) if row.finish == "eos"]
    assert ended
    assert all(stopping[n].steps <= going_on[n].steps for n in ended)


def test_the_text_ends_before_the_first_end_token() -> None:
    script = [*TOKENIZER.encode("done"), EOS, *TOKENIZER.encode("never")]
    [out] = generate(Scripted(script), ["p"], config=GenerationConfig(max_new_tokens=len(script)))
    assert (out.text, out.finish) == ("done", "eos")
    assert out.token_ids == tuple(TOKENIZER.encode("done"))


def test_min_new_tokens_holds_the_end_back() -> None:
    model, config = Scripted([65, EOS, EOS, EOS], second=66), GenerationConfig(max_new_tokens=4)
    assert generate(model, ["p"], config=config)[0].token_ids == (65,)
    later = generate(model, ["p"], config=replace(config, min_new_tokens=3))[0]
    assert (later.token_ids, later.finish) == ((65, 66, 66), "eos")


def test_suppressed_end_tokens_are_never_written() -> None:
    model = Scripted([65, EOS, 67, EOS], second=66)
    config = GenerationConfig(max_new_tokens=4, end_tokens="suppress")
    [out] = generate(model, ["p"], config=config)
    assert (out.token_ids, out.finish) == ((65, 66, 67, 66), "length")


def test_demoted_end_tokens_are_committed_last() -> None:
    model = Scripted([65, 66, EOS, EOS], order=(3, 2, 1, 0))
    config = GenerationConfig(max_new_tokens=4, stop_at_eos=False)

    def orders(end_tokens: Any) -> list[int]:
        batch = prepare(model, ["p"], Base(), replace(config, end_tokens=end_tokens))
        return [int(step.decision.commit[0].nonzero()) for step in batch.steps]

    assert orders("keep") == [3, 2, 1, 0]
    assert orders("demote")[:2] == [1, 0]


def test_nothing_runs_before_the_steps_are_drained() -> None:
    model = saying("text")
    batch = prepare(model, ["p"], LESS(), GenerationConfig(max_new_tokens=3))
    assert model.seen == []
    next(batch.steps)
    assert len(model.seen) == 1


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(model: Trunk) -> None:
    room = model.info.max_length
    with raises_field("prompts[1]", room + 1, f"at most {room} tokens", "10 new"):
        generate(model, ["a", [65] * (room - 9)], config=GenerationConfig(max_new_tokens=10))


def test_a_prompt_that_just_fits_is_taken() -> None:
    model = saying("abc")
    model.info = replace(model.info, max_length=8)
    ids = [65] * (8 - len(model.script))
    [out] = generate(model, [ids], config=GenerationConfig(max_new_tokens=len(model.script)))
    assert out.text == "abc"


@pytest.mark.parametrize("prompt", ["text", CHAT, tuple(CHAT), [1, 2, 3], (1, 2, 3)], ids=repr)
def test_one_prompt_returns_one_output_and_a_list_of_one_a_list(prompt: Any) -> None:
    model = saying("x")
    one = generate(model, prompt, max_new_tokens=4)
    assert isinstance(one, Generation)
    assert generate(model, [prompt], max_new_tokens=4) == [one]
    assert generate(model, (prompt, prompt), max_new_tokens=4) == [one, one]


@pytest.mark.parametrize("batch", [["text"], [CHAT], [[1, 2]], ["a", CHAT, [1, 2]], [[1], [2]]], ids=repr)
def test_a_list_of_prompts_returns_a_list(batch: Any) -> None:
    model = saying("x")
    singles = [generate(model, prompt, max_new_tokens=4) for prompt in batch]
    assert generate(model, batch, max_new_tokens=4) == singles


def test_one_prompt_is_refused_where_a_batch_is_prepared() -> None:
    with raises_field("prompts", [1, 2], "[prompt]"):
        prepare(saying("x"), [1, 2], LESS(), SHORT)  # type: ignore[arg-type]


def test_a_sampler_may_be_a_name() -> None:
    model = saying("abc")
    assert generate(model, "p", "threshold") == generate(model, "p", SAMPLERS["threshold"])
    assert list(stream(model, "p", "base")) == list(stream(model, "p", Base()))
    with raises_field("sampler", "treshold", "did you mean 'threshold'?"):
        generate(model, "p", "treshold")


def test_a_field_of_the_sampler_among_the_settings_is_told_from_a_wrong_name() -> None:
    with raises_field("max_jsd", 0.1, "make_sampler('less', max_jsd=0.1)"):
        generate(saying("ab"), "x", "less", max_jsd=0.1)


def test_settings_are_keywords_that_win_over_the_config() -> None:
    model = saying("x", ends=False)
    config = GenerationConfig(max_new_tokens=6, steps=6)
    assert generate(model, "p", Base(), max_new_tokens=3, steps=2).steps == 2
    out = generate(model, "p", Base(), config, max_new_tokens=4)
    assert (len(out.token_ids), out.steps) == (4, 4)
    assert out == generate(model, "p", Base(), replace(config, max_new_tokens=4))
    [*_, last] = stream(model, "p", Base(), config, max_new_tokens=4)
    assert last.generation == out
    with raises_field("max_tokens", 4, "did you mean 'max_new_tokens'?"):
        generate(model, "p", max_tokens=4)
    with raises_field("temperature", -1):
        generate(model, "p", temperature=-1)


def test_an_output_shows_its_text_and_its_cost_in_one_line() -> None:
    model = saying("word " * 60)
    out = generate(model, "p", "base", max_new_tokens=len(model.script))
    assert str(out).startswith("Generation(text='word word")
    assert f"{out.steps} steps, {out.forwards} forwards" in repr(out)
    assert len(repr(out)) < 200
    assert str(list(out.token_ids[:3]))[1:-1] in repr(replace(out, text=""))
    empty = replace(out, text="", token_ids=(), steps=1, forwards=1)
    assert repr(empty).startswith("Generation(text='', 1 step, 1 forward, ")


def test_a_notebook_shows_the_text_as_text_and_the_replay_of_a_trace() -> None:
    model = saying("<b>&", ends=False)
    plain, kept = (generate(model, "p", Base(), max_new_tokens=4, trace=trace) for trace in (False, True))
    assert plain == kept
    assert plain.trace is None
    assert "&lt;b&gt;&amp;" in plain._repr_html_()
    assert f"{plain.steps} steps" in plain._repr_html_()
    assert "<iframe" not in plain._repr_html_()
    [page] = re.findall(r'srcdoc="([^"]*)"', kept._repr_html_())
    assert unescape(page) == to_html(kept.trace)


def test_the_trace_of_each_row_of_a_batch_rebuilds_its_answer(model: Trunk) -> None:
    outs = generate(model, PROMPTS[:3], LESS(), short(model), trace=True)
    for out in outs:
        assert out.trace is not None
        [canvas] = replay(out.trace)
        generated = canvas[out.trace.header.start :]
        assert tuple(generated[: len(out.token_ids)]) == out.token_ids
        assert count(out.trace, 0).steps == out.steps
        assert count(out.trace, 0).forwards == out.forwards
        assert out.trace.texts[str(canvas[-1])] == model.tokenizer.decode([canvas[-1]], skip_special=False)


def test_a_bar_is_shown_on_request_and_changes_no_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask import progress

    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(stderr=stderr, force_terminal=True))
    model, prompts = saying("a text that is long enough to see"), ["p", "q", "r"]
    hidden = generate(model, prompts, Base(), batch_size=2, progress=False, max_new_tokens=16)
    assert capsys.readouterr().err == ""
    for show in (True, None):  # this terminal would show it
        assert generate(model, prompts, Base(), batch_size=2, progress=show, max_new_tokens=16) == hidden
        captured = capsys.readouterr()
        assert "decoding" in captured.err
        assert captured.out == ""


@pytest.mark.parametrize("prompts", [[], None, CHAT[0], torch.tensor([[1]])], ids=repr)
def test_what_is_no_list_of_prompts_is_refused(prompts: Any) -> None:
    with raises_field("prompts", prompts):
        generate(saying("x"), prompts)


@pytest.mark.parametrize(
    ("prompt", "value"),
    [
        ("", ""),
        ([], []),
        (None, None),
        (b"bytes", b"bytes"),
        ([1, "b"], [1, "b"]),
        ([True], [True]),
        ([512], 512),
        ([-1], -1),
        ([MASK], MASK),
        ("the <|mdm_mask|>", MASK),
    ],
    ids=repr,
)
def test_a_bad_prompt_is_refused_with_its_place_in_the_list(prompt: Any, value: Any) -> None:
    with raises_field("prompts[1]", value):
        generate(saying("x"), ["a", prompt])
    with raises_field("prompts", value):
        generate(saying("x"), [prompt])


def test_a_message_without_content_is_refused() -> None:
    with raises_field("messages[0]", {"role": "user"}, "content"):
        generate(saying("x"), [[{"role": "user"}]])


def test_other_bad_inputs_are_refused() -> None:
    model = saying("x")
    with raises_field("batch_size", 0):
        generate(model, ["p"], batch_size=0)
    with raises_field("seed", (1, 2)):
        generate(model, ["p"], config=GenerationConfig(seed=(1, 2)))
    with raises_field("block_length", 3, "2"):
        generate(model, ["p"], config=GenerationConfig(max_new_tokens=2, block_length=3))
    with raises_field("steps", 3, "4"):
        generate(model, ["p"], config=GenerationConfig(max_new_tokens=4, block_length=1, steps=3))


def test_a_model_without_a_tokenizer_takes_token_ids_and_answers_with_token_ids(calm: Trunk) -> None:
    config, prompts = GenerationConfig(max_new_tokens=24), [[11, 12], [7, 85]]
    expected = generate(calm, prompts, config=config)
    found = generate(without_tokenizer("dream_calm_tiny"), prompts, config=config)
    assert [replace(row, text="") for row in expected] == found
    assert {row.finish for row in found} == {"eos", "length"}
    assert all(row.text for row in expected)


def test_a_model_without_a_tokenizer_refuses_text_and_stop_strings_before_any_forward() -> None:
    model = Toy()
    for prompt in ("p", [{"role": "user", "content": "p"}]):
        with pytest.raises(ValueError, match="no tokenizer"):
            generate(model, [prompt])
    with pytest.raises(ValueError, match=r"stop .*'x'.*model.tokenizer"):
        generate(model, [[2]], config=GenerationConfig(stop=("x",)))
    assert model.calls == []


@pytest.mark.parametrize(
    ("sampler", "config", "field", "value"),
    [
        (None, GenerationConfig(), "sampler", None),
        (LESS, GenerationConfig(), "sampler", LESS),
        (LESS(), {"steps": 3}, "config", {"steps": 3}),
        (GenerationConfig(steps=3), GenerationConfig(), "sampler", GenerationConfig(steps=3)),
    ],
)
def test_what_only_looks_like_a_sampler_or_a_config_is_refused(
    llada: Any, sampler: Any, config: Any, field: str, value: Any
) -> None:
    with raises_field(field, value):
        generate(llada, ["the cat"], sampler, config)


@pytest.mark.parametrize("name", ["regex", "choice", "json_schema", "grammar"])
def test_a_constraint_under_its_name_in_the_commands_is_answered_with_its_class(
    llada: Any, name: str
) -> None:
    with raises_field(name, "x", "constraint=unmask."):
        generate(llada, "the cat", "less", **{name: "x"})


def test_a_name_where_a_model_is_wanted_is_refused() -> None:
    for ask in (
        lambda: generate("mini-llada", ["p"]),  # type: ignore[arg-type]
        lambda: prepare("mini-llada", ["p"], LESS(), SHORT),  # type: ignore[arg-type]
        lambda: stream("mini-llada", "p"),  # type: ignore[arg-type]
    ):
        with raises_field("model", "mini-llada", "unmask.load('mini-llada')"):
            ask()


@pytest.mark.parametrize("token", [512, 10**6, -1])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_token_that_no_vocabulary_has_is_refused_and_not_read_as_nothing(
    llada: Trunk, token: int, steps: int
) -> None:
    config = GenerationConfig(max_new_tokens=4, steps=steps)
    for model in (saying("text"), llada):  # the second has an embedding, which knows no such row
        with raises_field("Decision.tokens", token, "0 to 511"):
            generate(model, ["p"], Foreign(token), config)
    # the tokenizer refuses a negative one first
    with raises_field("token_ids" if token < 0 else "Decision.tokens", token):
        list(stream(saying("text"), "p", Foreign(token), config))


def test_without_a_seed_every_run_draws_anew_and_says_how_to_repeat_it(model: Trunk) -> None:
    config = GenerationConfig(max_new_tokens=24, temperature=5.0, stop_at_eos=False)
    batches = [generate(model, ["hello", "hello"], Base(), config) for _ in range(2)]
    answers = [answer for batch in batches for answer in batch]
    assert len({answer.seed for answer in answers}) == len({answer.token_ids for answer in answers}) == 4
    for batch in batches:
        again = replace(config, seed=tuple(answer.seed for answer in batch))
        assert generate(model, ["hello", "hello"], Base(), again) == batch


def test_a_seed_is_named_in_the_answer_and_greedy_decoding_needs_none(model: Trunk) -> None:
    seeded = GenerationConfig(max_new_tokens=8, temperature=1.0, seed=(3, 4))
    assert [answer.seed for answer in generate(model, ["a", "b"], config=seeded)] == [3, 4]
    greedy = [generate(model, ["a"], config=GenerationConfig(max_new_tokens=8))[0] for _ in range(2)]
    assert greedy[0] == greedy[1]


def test_filled_gaps_name_their_seed_too(model: Trunk) -> None:
    config = GenerationConfig(temperature=5.0)
    first, second = (infill(model, "a [[gap 16]] b", config=config) for _ in range(2))
    assert first.text != second.text
    assert infill(model, "a [[gap 16]] b", config=replace(config, seed=first.seed)).text == first.text


def test_a_tensor_of_ids_is_refused_with_a_remedy() -> None:
    with raises_field("prompts", ANYTHING, ".tolist()"):
        generate(saying("x"), torch.tensor([1, 2]))  # type: ignore[call-overload]
