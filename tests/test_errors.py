"""Bad input gets a sentence that names the field and the value; nothing hangs, nothing is clamped."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.toy import Scripted, Toy, predict, run
from unmask import (
    KLASS,
    LESS,
    SAMPLERS,
    Base,
    EntropyBound,
    Factor,
    Guided,
    LESSReleased,
    Options,
    Prophet,
    Selection,
    Threshold,
    blank,
    decode,
    denoise,
    make_sampler,
    plan,
)
from unmask.decoding import fuse
from unmask.types import Needs

NAN, INF = math.nan, math.inf

BAD_FIELDS = [
    (LESS, "min_confidence", -0.01),
    (LESS, "min_confidence", 1.01),
    (LESS, "max_jsd", -0.1),
    (LESS, "persistence", 0),
    (LESS, "min_margin", -0.2),
    (LESS, "min_margin", 1.5),
    (LESS, "top_k", 0),
    (LESS, "lookahead", -1),
    (LESS, "patience", -1),
    (LESS, "policy", "best"),
    (LESS, "block_policy", "frontire"),
    (LESSReleased, "min_confidence", 2),
    (LESSReleased, "min_confidence", -1),
    (LESSReleased, "max_jsd", -0.1),
    (LESSReleased, "persistence", 0),
    (LESSReleased, "top_k", 0),
    (LESSReleased, "lookahead", -3),
    (LESSReleased, "patience", -1),
    (LESSReleased, "end_floor", -0.1),
    (LESSReleased, "end_bar", -0.1),
    (LESSReleased, "end_slope", -0.1),
    (LESSReleased, "end_jsd_factor", -0.5),
    (KLASS, "min_confidence", 1.2),
    (KLASS, "min_confidence", -0.2),
    (KLASS, "max_kl", -0.01),
    (KLASS, "history", 0),
    (KLASS, "unmask_strategy", "some"),
    (Prophet, "early", -1),
    (Prophet, "mid", -1),
    (Prophet, "late", -1),
    (Prophet, "answer_start", -1),
    (Prophet, "answer_length", 0),
    (Threshold, "min_confidence", 1.1),
    (Threshold, "min_confidence", -0.1),
    (Factor, "factor", -1),
    (EntropyBound, "bound", -0.1),
    (Base, "order", "alphabetical"),
    (Base, "order_temperature", -1),
    (Base, "temperature", -0.5),
    (Base, "temperature", INF),
    (Base, "top_p", 0),
    (Base, "top_p", 1.1),
    (Base, "top_k", -1),
    (Selection, "temperature", -1),
    (Selection, "temperature", INF),
    (Selection, "top_p", 0),
    (Selection, "top_p", -0.5),
    (Selection, "top_p", 1.5),
    (Selection, "top_k", -1),
    (Options, "min_new_tokens", -1),
    (LESS, "exact", "x"),
    (LESS, "exact", 1),
    (Factor, "last_rank_free", "no"),
    (Factor, "last_rank_free", None),
    (Base, "demoted_ids", 5),
    (Base, "demoted_ids", "12"),
    (Base, "demoted_ids", (3, "4")),
    (Base, "demoted_ids", (2.5,)),
    (Base, "demoted_ids", (-1,)),
    (Base, "demoted_ids", (True,)),
    (Prophet, "answer_start", False),
    (Options, "banned_ids", 5),
    (Options, "stop_at_eos", "no"),
    (Options, "fill_leftovers", 0),
    (Options, "reuse", None),
]

NUMBERS = [  # every field that is a number
    (LESS, ("min_confidence", "max_jsd", "persistence", "min_margin", "top_k", "lookahead", "patience")),
    (LESSReleased, ("min_confidence", "max_jsd", "persistence", "top_k", "lookahead", "patience")),
    (LESSReleased, ("end_floor", "end_bar", "end_slope", "end_jsd_factor")),
    (KLASS, ("min_confidence", "max_kl", "history")),
    (Prophet, ("early", "mid", "late", "answer_start", "answer_length")),
    (Threshold, ("min_confidence",)),
    (Factor, ("factor",)),
    (EntropyBound, ("bound",)),
    (Base, ("order_temperature", "temperature", "top_p", "top_k")),
    (Selection, ("temperature", "top_p", "top_k")),
    (Options, ("min_new_tokens",)),
]


@pytest.mark.parametrize(("kind", "name", "value"), BAD_FIELDS)
def test_a_field_outside_its_range_is_refused_with_its_name_and_value(kind, name, value):
    with pytest.raises(ValueError, match=rf"{name} must .*{re.escape(str(value))}"):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NUMBERS for name in names])
def test_nan_is_never_a_threshold(kind, name):
    with pytest.raises(ValueError, match=rf"{name} must .*nan"):
        kind(**{name: NAN})


def test_ids_in_a_list_as_a_preset_file_has_them_become_a_tuple():
    assert Base(demoted_ids=[3, 4]) == Base(demoted_ids=(3, 4))
    hash(Base(demoted_ids=[3, 4]))


@pytest.mark.parametrize("value", [NAN, INF, 0, -0.5, 1.5, "1", None])
def test_a_top_p_is_always_refused_with_the_same_range(value):
    with pytest.raises(ValueError, match=re.escape(f"top_p must be in (0, 1], got {value!r}")):
        Selection(top_p=value)


def test_every_number_of_every_sampler_is_checked_here():
    listed = {(kind, name) for kind, names in NUMBERS for name in names}
    kinds = {type(sampler) for sampler in SAMPLERS.values()}
    numbers = {
        (kind, field.name)
        for kind in kinds
        for field in fields(kind)
        if str(field.type) in ("float", "int", "int | None")
    }
    assert numbers <= listed


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_preset_refuses_a_bad_change(name):
    for item in fields(SAMPLERS[name]):
        if str(item.type) in ("float", "int"):
            with pytest.raises(ValueError, match=f"{item.name} must .*-7"):
                make_sampler(name, **{item.name: -7})


@pytest.mark.parametrize(
    ("wrong", "right"), [("les", "less"), ("klas", "klass"), ("treshold", "threshold"), ("Less", "less")]
)
def test_an_unknown_sampler_is_answered_with_the_nearest_name_and_all_names(wrong, right):
    with pytest.raises(ValueError, match=rf"unknown sampler '{wrong}'; did you mean '{right}'\?") as caught:
        make_sampler(wrong)
    for name in SAMPLERS:
        assert name in str(caught.value)


def test_an_unknown_sampler_that_resembles_nothing_gets_the_list_without_a_guess():
    with pytest.raises(ValueError, match="unknown sampler 'zzz'; available: base") as caught:
        make_sampler("zzz")
    assert "did you mean" not in str(caught.value)


def test_an_unknown_field_is_answered_with_the_nearest_field():
    with pytest.raises(
        ValueError, match=r"unknown field 'max_jds' of sampler 'less'; did you mean 'max_jsd'\?"
    ):
        make_sampler("less", max_jds=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"steps": -4}, "steps must be a whole number >= 1, got -4"),
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"block_length": 0}, "block_length must be between 1 and the generation length 8, got 0"),
        ({"block_length": -2}, "block_length must be between 1 and the generation length 8, got -2"),
        ({"block_length": 9}, "block_length must be between 1 and the generation length 8, got 9"),
        ({"block_length": 3, "steps": 2}, "steps must be at least 1 per block: got steps=2 for 3 blocks"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plan(5, **{"length": 8, "steps": 8, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "prompts is empty"),
        ({"prompts": [[2], []]}, "prompt 1 is empty"),
        ({"prompts": [[2], [3, 0, 4]]}, "prompt 1 contains the mask token 0"),
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"length": -1}, "length must be a whole number >= 1, got -1"),
        ({"pins": {4: 2}}, "pins must lie inside the generation, 0 to 3; got offset 4"),
        ({"pins": {-1: 2}}, "pins must lie inside the generation, 0 to 3; got offset -1"),
        ({"pins": {1: 0}}, "pins must not write the mask token 0 (offset 1)"),
    ],
)
def test_a_canvas_that_cannot_be_made_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        blank(**{"prompts": [[2]], "length": 4, "mask_id": 0, "pad_id": 0, **arguments})


@pytest.mark.parametrize("start", [0, 2])
def test_a_plan_that_reaches_outside_the_generated_columns_is_refused_before_any_forward(start):
    model = Toy()
    canvas = blank([[2]], 4, mask_id=0, pad_id=0)
    with pytest.raises(ValueError, match=f"the plan covers columns {start} to {start + 4}, but the canvas"):
        decode(model, canvas, LESS(), plan(start, 4, steps=4))
    assert model.calls == []


def test_a_vocabulary_of_one_token_is_refused():
    with pytest.raises(ValueError, match="vocab_size must be >= 2, got 1"):
        run(Scripted([[0.0]] * 6), LESS())


@pytest.mark.parametrize("scale", [-0.5, NAN, INF])
def test_a_guidance_scale_outside_its_range_is_refused(scale):
    with pytest.raises(ValueError, match=f"guidance must be >= 0 and finite, got {scale}"):
        Guided.on(Toy(), blank([[2]], 4, mask_id=0, pad_id=0), scale)


def test_an_answer_region_outside_the_generation_is_refused():
    with pytest.raises(ValueError, match=r"answer_start .*6"):
        run(Toy(), Prophet(answer_start=6), length=6)


# broken logits


@dataclass(frozen=True)
class Broken:
    """A toy whose logits hold a bad value in one row from one call on."""

    value: float
    row: int
    call: int = 1
    everywhere: bool = False
    column: int = 1
    toy: Toy = field(default_factory=lambda: Toy(vocab_size=8, eos_ids=()))

    @property
    def info(self):
        return replace(self.toy.info, separable=False)  # the bad row is known by its number

    def __call__(self, tokens, attend, window, cache):
        logits = self.toy(tokens, attend, window, cache)
        if len(self.toy.calls) >= self.call:
            logits[self.row, -1, ... if self.everywhere else self.column] = self.value
        return logits


ROWS = [(2, 3), (4,), (5, 6, 7)]


@pytest.mark.parametrize(
    "name", ["base", "threshold", "klass", "prophet", "less", "less-paper", "less-released"]
)
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("row", [0, 2])
def test_nan_and_infinite_logits_are_an_error_that_names_step_and_row(name, value, row):
    with pytest.raises(ValueError, match=f"NaN or infinite logits at step 1, row {row};"):
        run(Broken(value, row), SAMPLERS[name], ROWS)


def test_a_row_without_any_possible_token_is_an_error_that_names_step_and_row():
    with pytest.raises(ValueError, match="at step 1, row 1;"):
        run(Broken(-INF, 1, everywhere=True), LESS(), ROWS)


def test_one_token_ruled_out_is_no_error():
    assert run(Broken(-INF, 1), LESS(), ROWS).finish == ("length",) * 3


@pytest.mark.parametrize("value", [NAN, INF])
def test_the_error_names_the_later_step_at_which_the_logits_broke(value):
    with pytest.raises(ValueError, match="at step 3, row 1;"):
        run(Broken(value, 1, call=3), Base(), ROWS)


def test_the_step_is_counted_over_all_blocks():
    with pytest.raises(ValueError, match="at step 5, row 1;"):
        run(Broken(NAN, 1, call=5), Base(), ROWS, block_length=2)


def test_a_step_on_a_reused_prediction_is_counted_too():
    # step 1 is skipped without a second forward, so the third forward is a later step
    model = Broken(NAN, 0, call=2, toy=Toy(vocab_size=8, eos_ids=(), drift=0.0, lead=0.0))
    sampler = make_sampler("less-paper", min_confidence=1.0, patience=2)
    with pytest.raises(ValueError, match="at step 4, row 0;"):
        run(model, sampler, length=4, steps=20)


def test_nothing_of_the_broken_step_is_handed_out():
    model, canvas = Broken(NAN, 0, call=2), blank([[2, 3]], 4, mask_id=0, pad_id=0)
    steps = denoise(model, canvas, Base(), plan(2, 4, steps=4))
    assert next(steps).index == 1
    with pytest.raises(ValueError, match="at step 2, row 0;"):
        next(steps)


@pytest.mark.parametrize("value", [NAN, INF])
def test_logits_that_break_in_the_leftover_fill_are_an_error_that_names_the_last_step(value):
    sampler = make_sampler("less-paper", patience=0)
    with pytest.raises(ValueError, match="at step 2, row 2;"):
        run(Broken(value, 2, call=3), sampler, ROWS, length=6, steps=2)


def test_several_broken_rows_are_all_named():
    class Both(Broken):
        def __call__(self, tokens, attend, window, cache):
            logits = self.toy(tokens, attend, window, cache)
            logits[[0, 2], 0, 3] = NAN
            return logits

    with pytest.raises(ValueError, match="at step 1, row 0, 2;"):
        run(Both(NAN, 0), LESS(), ROWS)


def test_a_row_that_has_ended_may_say_what_it_likes():
    result = run(Broken(NAN, 1), Base(), ROWS, filled=[{}, dict.fromkeys(range(6), 3), {}])
    assert result.steps.tolist() == [6, 0, 6]


def test_a_broken_logit_of_the_mask_token_does_not_matter_because_it_is_banned():
    result = run(Broken(NAN, 1, column=0), Base(), ROWS)
    assert result.steps.tolist() == [6, 6, 6]


def test_infinite_patience_ends_with_the_budget():
    result = run(Toy(eos_ids=()), LESS(min_confidence=1.0, patience=10**9), length=6, steps=9)
    assert result.steps.tolist() == [9]
    assert result.leftovers.tolist() == [6]


def test_asking_for_logits_that_were_not_kept_is_an_error_with_a_hint():
    with pytest.raises(ValueError, match=r"ask for them with Needs\(logits=True\)"):
        predict([[0.0, 1.0]]).without_logits().full_logits  # noqa: B018


def broken_canvas_mask():
    canvas = blank([[2]], 4, mask_id=7, pad_id=0)
    return decode(Toy(), canvas, LESS(), plan(1, 4, steps=4))


def short_plan():
    canvas = blank([[2]], 6, mask_id=0, pad_id=0)
    return decode(Toy(), canvas, LESS(), plan(1, 4, steps=4))


def too_few_seeds():
    return run(Toy(), Base(order="random"), [[2], [3]], seeds=[1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: Options(schedule="cosine"), "schedule .*cosine"),
        (lambda: Options(min_new_tokens=NAN), "min_new_tokens must .*nan"),
        (lambda: run(Toy(), LESS(), length=6, min_new_tokens=7), "min_new_tokens .*7"),
        (lambda: run(Toy(), LESS(), banned_ids=(-1,)), "banned_ids .*-1"),
        (lambda: run(Toy(), LESS(), banned_ids=(99,)), "banned_ids .*99"),
        (lambda: run(Toy(), Base(demoted_ids=(-1,))), "demoted_ids .*-1"),
        (lambda: run(Toy(), Base(demoted_ids=(99,))), "demoted_ids .*99"),
        (lambda: Selection(top_k=NAN), "top_k must .*nan"),
        (lambda: Selection(top_k=2.5), "top_k must .*2.5"),
        (lambda: LESS(persistence=1.5), "persistence must .*1.5"),
        (lambda: LESS(top_k=2.5), "top_k must .*2.5"),
        (lambda: KLASS(history=1.5), "history must .*1.5"),
        (lambda: LESSReleased(end_bar=5.0), "end_bar must .*5"),
        (lambda: LESSReleased(end_floor=2.0), "end_floor must .*2"),
        (lambda: plan(1, 4, steps=2.5), "steps must .*2.5"),
        (lambda: plan(1, 4, steps=NAN), "steps must .*nan"),
        (lambda: run(Toy(), LESS(), pins={0: 99}), "99"),
        (lambda: run(Toy(), LESS(), [[99]]), "99"),
        (lambda: run(Toy(), LESS(), [[-5]]), "-5"),
        (broken_canvas_mask, "mask"),
        (short_plan, "plan"),
        (too_few_seeds, "seeds|rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_this_bad_input_gets_a_sentence_as_well(bad, message):
    with pytest.raises(ValueError, match=message):
        bad()


# samplers and models of one's own


@dataclass(frozen=True)
class Own:
    """A sampler whose decision is the usual one with some parts replaced."""

    changes: dict = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)

    def decide(self, obs):
        usual = Base().decide(obs)
        return replace(usual, **{name: make(obs) for name, make in self.changes.items()})


@dataclass(frozen=True)
class Mute(Own):
    """A sampler that forgets to answer."""

    def decide(self, obs):
        return None


BAD_DECISIONS = [
    (
        Own({"commit": lambda obs: obs.active[:, :-1]}),
        "Own.decide: commit must be a torch.bool tensor of shape [1, 6], got torch.bool of shape [1, 5]",
    ),
    (Own({"commit": lambda obs: obs.active[:, :1]}), "commit must be a torch.bool tensor of shape [1, 6]"),
    (Own({"commit": lambda obs: obs.active.float()}), "got torch.float32 of shape [1, 6]"),
    (
        Own({"commit": lambda obs: None}),
        "Own.decide: commit must be a torch.bool tensor of shape [1, 6], got None",
    ),
    (
        Own({"eligible": lambda obs: obs.active.long()}),
        "eligible must be a torch.bool tensor of shape [1, 6]",
    ),
    (Own({"forced": lambda obs: obs.active}), "forced must be a torch.bool tensor of shape [1]"),
    (Own({"forced": lambda obs: False}), "forced must be a torch.bool tensor of shape [1], got False"),
    (Own({"tokens": lambda obs: obs.now.lse}), "tokens must be a torch.int64 tensor of shape [1, 6]"),
    (Own({"tokens": lambda obs: obs.drawn[0, 0]}), "tokens must be a torch.int64 tensor of shape [1, 6]"),
    (Mute(), "Mute.decide must return a Decision, got None"),
]


@pytest.mark.parametrize(("sampler", "message"), BAD_DECISIONS, ids=lambda value: str(value)[:40])
def test_a_decision_that_does_not_fit_the_window_is_refused_with_the_samplers_name(sampler, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(Toy(), sampler, length=6)


@pytest.mark.parametrize(
    "sampler",
    [
        Own({"commit": lambda obs: obs.active[:, :-1]}),
        Own({"commit": lambda obs: obs.active.float()}),
        Own({"forced": lambda obs: obs.active}),
        Own({"tokens": lambda obs: obs.now.lse}),
        Mute(),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_a_compiled_decision_is_refused_with_the_same_sentence(sampler, traced):
    with pytest.raises(ValueError, match=rf"^{type(sampler).__name__}.decide"):
        run(Altered(lambda logits: logits, compiled=True), sampler)


def test_the_checks_break_no_graph_of_a_compiled_decision(traced, monkeypatch):
    whole = cache(lambda work: torch.compile(work, dynamic=False, backend="eager", fullgraph=True))
    monkeypatch.setattr(fuse, "_compiled", whole)
    made = run(Altered(lambda logits: logits, compiled=True), Own(), length=4)
    assert made.tokens.tolist() == run(Toy(), Own(), length=4).tokens.tolist()


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (Needs(top_k=0), "Own.needs: top_k must be a whole number >= 1, got 0"),
        (Needs(top_k=2.5), "top_k must be a whole number >= 1, got 2.5"),
        (Needs(lookback=-1), "lookback must be a whole number >= 0, got -1"),
        (Needs(span="yes"), "span must be True or False, got 'yes'"),
        ({"top_k": 2}, "Own.needs must be a Needs, got {'top_k': 2}"),
    ],
)
def test_needs_that_cannot_be_met_are_refused_before_any_forward(needs, message):
    model = Toy()
    with pytest.raises(ValueError, match=re.escape(message)):
        run(model, Own(needs=needs))
    assert model.calls == []


@dataclass(frozen=True)
class Altered:
    """A toy whose logits are changed on their way out."""

    change: object
    compiled: bool = False
    toy: Toy = field(default_factory=Toy)

    @property
    def info(self):
        return replace(self.toy.info, compiled=self.compiled)

    def __call__(self, tokens, attend, window, cache):
        return self.change(self.toy(tokens, attend, window, cache))


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda logits: logits[:, :-1], "[1, 5, 12]"),
        (lambda logits: logits[..., :-1], "[1, 6, 11]"),
        (lambda logits: torch.cat([logits, logits], -1), "[1, 6, 24]"),
        (lambda logits: logits[0], "[6, 12]"),
        (lambda logits: torch.cat([logits, logits]), "[2, 6, 12]"),
    ],
)
def test_logits_of_a_wrong_shape_are_refused_with_both_shapes(change, got):
    wanted = r"logits of shape \[1, 6, 12\] \(rows, window, ModelInfo.vocab_size\), got "
    with pytest.raises(ValueError, match=wanted + re.escape(got)):
        run(Altered(change), LESS(), length=6)


@pytest.mark.parametrize(
    ("change", "got"),
    [(lambda logits: None, "NoneType"), (lambda logits: {"logits": logits}, "dict")],
)
def test_a_model_that_returns_no_tensor_is_refused(change, got):
    with pytest.raises(ValueError, match=f"the model must return a tensor of logits, got {got}"):
        run(Altered(change), LESS())


def test_logits_that_are_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"logits must be floating-point numbers, got torch.int64"):
        run(Altered(lambda logits: logits.long()), LESS())


@pytest.mark.parametrize("token", [12, 999, -3])
def test_a_token_outside_the_vocabulary_that_a_sampler_wrote_is_refused(token):
    sampler = Own({"tokens": lambda obs: obs.drawn.fill_(token)})
    with pytest.raises(ValueError, match=f"Decision.tokens must be token ids from 0 to 11, got {token}"):
        run(Toy(eos_ids=()), sampler)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("less", r"sampler must be a sampler such as LESS\(\) or make_sampler\('less'\), got 'less'"),
        (LESS, "sampler must be a sampler such as"),
        (None, "sampler must be a sampler such as .* got None"),
    ],
)
def test_a_name_where_a_sampler_is_wanted_is_refused(sampler, message):
    with pytest.raises(ValueError, match=message):
        run(Toy(), sampler)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("mini-llada", "got 'mini-llada'; load it with unmask.load('mini-llada')"),
        (Path("some/folder"), "; load it with unmask.load('some/folder')"),
        (None, "model must be a loaded model, got NoneType; unmask.load gives one"),
        (Toy, "model must be a loaded model, got type; unmask.load gives one"),
    ],
)
def test_a_name_where_a_model_is_wanted_is_refused(model, message):
    canvas = blank([[2]], 4, mask_id=0, pad_id=0)
    with pytest.raises(ValueError, match=re.escape(message)):
        decode(model, canvas, LESS(), plan(1, 4, steps=4))
    with pytest.raises(ValueError, match=re.escape(message)):
        next(denoise(model, canvas, LESS(), plan(1, 4, steps=4)))


def test_ruling_out_every_token_is_not_blamed_on_the_model():
    with pytest.raises(ValueError, match="banned"):
        run(Toy(), LESS(), banned_ids=tuple(range(12)))
