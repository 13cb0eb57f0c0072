"""Gaps are filled, everything else stays."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.raises import ANYTHING, raises_field
from tests.text.scripted import BOS, EOS, MASK, TOKENIZER, Foreign, Scripted
from unmask import KLASS, SAMPLERS, Threshold
from unmask.bench.every_sampler import kinds
from unmask.models.trunk import Trunk
from unmask.text.config import GenerationConfig
from unmask.text.gaps import Gap, escape_gaps, parse_gaps
from unmask.text.infill import infill, plan_gaps

BLOCKS = GenerationConfig(block_length=8)


@pytest.mark.parametrize("name", kinds())
def test_every_sampler_fills_the_gaps_and_nothing_else(model: Trunk, name: str) -> None:
    config = GenerationConfig() if model.info.block_length is None else BLOCKS
    out = infill(model, "the [[gap 5]] is not [[gap 0-6]] here", SAMPLERS[name], config)
    first, second = out.gaps
    assert out.text == f"the {first} is not {second} here"
    assert len(out.gap_ids[0]) == 5
    assert len(out.gap_ids[1]) <= 6
    assert not {model.info.mask_id, *model.info.eos_ids} & {*out.gap_ids[0], *out.gap_ids[1]}
    revoked = 0 if SAMPLERS[name].needs.whole_blocks else out.revoked  # it rewrites: no mask comes back
    assert out.accepted + out.forced + out.leftovers - revoked == 11


def test_an_end_token_may_wait_inside_a_gap_too(model: Trunk) -> None:
    config = replace(BLOCKS, end_tokens="last", min_gap=2)
    out = infill(model, "the [[gap 5]] is not [[gap 0-6]] here", Threshold(min_confidence=0.1), config)
    assert out.text == f"the {out.gaps[0]} is not {out.gaps[1]} here"
    assert out.accepted + out.forced + out.leftovers == 11


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"block_length": 4},
        {"temperature": 1.0},
        {"guidance": 0.5},
        {"cache": "prefix"},
        {"cache": "dual"},
    ],
    ids=str,
)
def test_the_model_never_sees_a_given_token_changed(changes: dict[str, Any]) -> None:
    model = Scripted([*TOKENIZER.encode("xy"), 33, 33, 33, *TOKENIZER.encode("z.")])
    out = infill(model, ["ab", Gap(2), "!!!", Gap(2)], config=GenerationConfig(**changes))
    given = [*TOKENIZER.encode("ab"), None, None, *TOKENIZER.encode("!!!"), None, None]
    for tokens in model.seen:
        row = tokens[0].tolist()
        assert all(token in (None, seen) for token, seen in zip(given, row, strict=True))
    assert out.given_tokens == 5
    if not changes.get("temperature"):
        assert (out.text, out.gaps) == ("abxy!!!z.", ("xy", "z."))


def test_text_and_parts_say_the_same(model: Trunk) -> None:
    parts = ["a ", Gap(3), " b", Gap(min=1, max=4)]
    assert infill(model, parts) == infill(model, "a [[gap 3]] b[[gap 1-4]]")


@pytest.mark.parametrize("parts", [[Gap(3), " end"], [Gap(4)], ["", Gap(2), Gap(2), "", " x"]], ids=str)
def test_a_text_may_begin_with_a_gap(model: Trunk, parts: list[Any]) -> None:
    out = infill(model, parts)
    filled = iter(out.gaps)
    assert out.text == "".join(part if isinstance(part, str) else next(filled) for part in parts)
    assert [len(ids) for ids in out.gap_ids] == [part.length for part in parts if isinstance(part, Gap)]


def test_a_text_that_begins_with_a_gap_gets_a_beginning_of_text_if_there_is_one(model: Trunk) -> None:
    tokenizer: Any = model.tokenizer
    plain = infill(model, [Gap(3), " end"])
    bare = replace(tokenizer.special, bos=None)
    try:
        special, tokenizer.special = tokenizer.special, bare
        without = infill(model, [Gap(3), " end"])
    finally:
        tokenizer.special = special
    assert plain.given_tokens == without.given_tokens + 1
    assert len(without.gap_ids[0]) == 3
    model_seen = Scripted([65, 66])
    infill(model_seen, [Gap(2)])
    assert model_seen.seen[0].tolist() == [[BOS, MASK, MASK]]


def test_an_end_token_drops_the_rest_of_a_bounded_gap() -> None:
    model = Scripted([65, EOS, 67, 68, *TOKENIZER.encode(" z")], second=66)
    filled = [infill(model, ["p", gap, " z"]).gap_ids[0] for gap in (Gap(max=4), Gap(min=2, max=4), Gap(4))]
    assert filled == [(65,), (65, 66, 67, 68), (65, 66, 67, 68)]


def test_a_padding_token_ends_a_gap_too() -> None:
    model = Scripted([65, EOS, 67], info=replace(Scripted([]).info, eos_ids=()))
    assert infill(model, ["p", Gap(max=3)]).gaps == (TOKENIZER.decode([65]),)


def test_an_empty_gap_leaves_the_given_text() -> None:
    assert infill(Scripted([EOS, EOS, *TOKENIZER.encode("b")]), "a[[gap 0-2]]b").text == "ab"


def test_every_text_of_a_list_may_have_its_seed(model: Trunk) -> None:
    config, texts = GenerationConfig(temperature=1.0, seed=(3, 4)), ["a [[gap 8]] b", "c [[gap 4]]"]
    alone = [infill(model, texts[row], config=replace(config, seed=3 + row)).text for row in range(2)]
    assert [filled.text for filled in infill(model, texts, config=config)] == alone
    with raises_field("seed", (3, 4)):
        infill(model, texts[0], config=config)


def test_a_seed_repeats_an_infilling(model: Trunk) -> None:
    config = GenerationConfig(temperature=1.0, seed=3)
    first = infill(model, "a [[gap 8]] b", config=config)
    assert infill(model, "a [[gap 8]] b", config=config) == first
    assert infill(model, "a [[gap 8]] b", config=replace(config, seed=4)).text != first.text


def test_refreshing_a_cache_at_every_step_is_no_cache(model: Trunk) -> None:
    config = replace(BLOCKS, reuse=False)
    text = "[[gap 6]] and then some words between [[gap 9]]."
    cached = replace(config, cache="dual", refresh_every=1)
    assert infill(model, text, config=cached) == infill(model, text, config=config)


@given(st.lists(st.booleans(), min_size=1, max_size=40).filter(any), st.data())
def test_a_plan_spends_every_step_on_blocks_with_masks(masks: list[bool], data: st.DataObject) -> None:
    size = data.draw(st.none() | st.integers(1, 12))
    steps = data.draw(st.none() | st.integers(40, 60))
    made = plan_gaps(masks, steps, size)
    budgets = [block.budget for block in made.blocks]
    covered = [
        column for block in made.blocks for column in range(len(masks))[block.columns] if masks[column]
    ]
    assert covered == [column for column, masked in enumerate(masks) if masked]
    assert all(any(masks[block.columns]) for block in made.blocks)
    assert sum(budgets) == made.steps == (steps or sum(masks))
    assert min(budgets) >= 1
    assert [block.first_step for block in made.blocks] == [0, *accumulate(budgets)][:-1]
    if steps is None:
        assert budgets == [sum(masks[block.columns]) for block in made.blocks]


def test_every_block_keeps_a_step() -> None:
    budgets = [block.budget for block in plan_gaps([True] + [False] * 3 + [True] * 8, 3, 4).blocks]
    assert budgets == [1, 1, 1]
    with raises_field("steps", 2, "at least 3"):
        plan_gaps([True] + [False] * 3 + [True] * 8, 2, 4)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a[[gap 3]]b", ["a", Gap(3), "b"]),
        ("[[gap 1-3]]", ["", Gap(min=1, max=3), ""]),
        ("[[gap 2]][[gap 3]]", ["", Gap(2), "", Gap(3), ""]),
        (r"a\[[gap 3]]b", ["a[[gap 3]]b"]),
        (r"a\\[[gap 3]]b", ["a\\", Gap(3), "b"]),
        (r"a\\\[[gap 3]]b", [r"a\[[gap 3]]b"]),
        (r"\[[gap of any kind", ["[[gap of any kind"]),
        (r"[[1, 2]] \n [[gopher]]", [r"[[1, 2]] \n [[gopher]]"]),
    ],
)
def test_gaps_are_read_and_escapes_are_not(text: str, parts: list[Any]) -> None:
    assert parse_gaps(text) == parts


@given(st.text("\\[]gap 12-"), st.text("\\[]gap 12-"))
def test_an_escaped_text_has_no_gap(left: str, right: str) -> None:
    assert parse_gaps(escape_gaps(f"{left}[[gap 3]]{right}")) == [f"{left}[[gap 3]]{right}"]


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("no gap", "no gap", "[[gap 8]]"),
        ([], [], "[[gap 8]]"),
        ("a [[gap]] b", "[[gap]] b", "[[gap 2-8]]"),
        ("a [[gap three]]", "[[gap three]]", "[[gap 2-8]]"),
        (["a", 3], 3, "strings and Gaps"),
        (None, None, "strings and Gaps"),
        ("<|mdm_mask|>[[gap 3]]", 509, "mask"),
        (["a", Gap(5000)], 5001, "at most 4096"),
    ],
    ids=repr,
)
def test_bad_texts_are_refused(text: Any, value: Any, words: str) -> None:
    with raises_field("text", value, words):
        infill(Scripted([65]), text)


@pytest.mark.parametrize("gap", ["[[gap 0]]", "[[gap 5-2]]", "[[gap 0-0]]"])
def test_a_gap_of_no_possible_length_is_refused_as_it_was_written(gap: str) -> None:
    with raises_field("gap", gap, "must have"):
        infill(Scripted([65]), f"a {gap} b")


@pytest.mark.parametrize(
    "fields", [{}, {"length": 3, "max": 4}, {"length": 3, "min": 1}, {"length": 2.5}, {"max": -1}], ids=str
)
def test_bad_gaps_are_refused(fields: dict[str, Any]) -> None:
    with raises_field("gap", ANYTHING, "got Gap("):
        Gap(**fields)


def test_settings_that_make_no_sense_here_are_refused() -> None:
    settings: list[tuple[str, Any, str]] = [
        ("stop", ("a",), "cut"),
        ("min_new_tokens", 2, "[[gap 2-8]]"),
        ("max_new_tokens", 5, "[[gap 5]]"),
    ]
    for field, value, remedy in settings:
        with raises_field(field, value, remedy):
            infill(Scripted([65]), "a[[gap 1]]", Threshold(), GenerationConfig(**{field: value}))
    with raises_field("cache", "dual", "KLASS"):
        infill(Scripted([65] * 8), [Gap(8)], KLASS(), GenerationConfig(cache="dual", block_length=4))


def test_a_name_where_a_model_is_wanted_is_refused() -> None:
    with raises_field("model", "mini-llada", "unmask.load('mini-llada')"):
        infill("mini-llada", "a[[gap 1]]")  # type: ignore[arg-type]


def test_a_model_whose_window_is_too_narrow_is_refused() -> None:
    class Narrow(Scripted):
        def __call__(self, *given: Any) -> Tensor:
            return super().__call__(*given)[:, :-1]

    with pytest.raises(ValueError, match=r"logits of shape \[1, 4, 512\] .* got \[1, 3, 512\]"):
        infill(Narrow([65] * 4), "a[[gap 2-4]]", Threshold())


def test_a_token_that_no_vocabulary_has_is_refused() -> None:
    with raises_field("Decision.tokens", 700, "0 to 511"):
        infill(Scripted([65] * 4), "a[[gap 4]]", Foreign(700))


def test_a_long_text_of_escaped_gaps_is_read_in_linear_time() -> None:
    text = r"\[[gap" * 170_000
    began = thread_time()
    assert parse_gaps(text) == [text.replace("\\", "")]
    assert thread_time() - began < 2


def test_one_text_returns_one_output_and_a_list_of_texts_a_list(llada: Trunk) -> None:
    texts = ["the [[gap 2]] sat", ["a ", Gap(3)]]
    one, other = (infill(llada, text, "base") for text in texts)
    assert infill(llada, texts, "base") == [one, other]
    assert infill(llada, texts[:1], "base") == [one]
    assert one.text == f"the{' '}{one.gaps[0]} sat"
    with raises_field("text", "no gap"):
        infill(llada, ["the [[gap 2]] sat", "no gap"])


def test_an_infilling_shows_itself_and_keeps_its_steps_on_request(llada: Trunk) -> None:
    out = infill(llada, "the [[gap 4]] sat", "base", steps=2, trace=True)
    assert (out.steps, out.trace is None) == (2, False)
    assert f"{out.steps} steps" in repr(out)
    assert "<iframe" in out._repr_html_()
    with raises_field("step", 2, "did you mean 'steps'?"):
        infill(llada, "the [[gap 4]] sat", step=2)
