"""Bad input gets an error that names the field and the value; nothing hangs, nothing is clamped."""

from __future__ import annotations

import copy
import math
import pickle
import re
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.raises import ANYTHING, check_message, raises_field
from tests.toy import Scripted, Toy, predict, run
from unmask import (
    KLASS,
    LESS,
    PC,
    SAMPLERS,
    WINO,
    Base,
    Credit,
    Dawn,
    Editing,
    EntropyBound,
    EntropyThreshold,
    Factor,
    FirstMask,
    Guided,
    Hierarchy,
    LESSReleased,
    LocalLeap,
    Options,
    Prophet,
    QuotaThreshold,
    Saber,
    Selection,
    Threshold,
    blank,
    decode,
    denoise,
    make_sampler,
    plan,
)
from unmask.errors import FieldError, known_field, one_of
from unmask.fast import executor as fast
from unmask.samplers.wrapper import inner
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
    (EntropyThreshold, "max_entropy", -0.1),
    (LocalLeap, "min_confidence", 1.1),
    (LocalLeap, "relaxed_confidence", -0.1),
    (LocalLeap, "radius", -1),
    (LocalLeap, "radius", 1.5),
    (Hierarchy, "min_confidence", 1.1),
    (Hierarchy, "low_confidence", -0.1),
    (FirstMask, "min_confidence", 1.1),
    (FirstMask, "window", 0),
    (FirstMask, "along", "always"),
    (FirstMask, "along_confidence", -0.1),
    (FirstMask, "along_jsd", -0.1),
    (FirstMask, "revoke_below", 1.1),
    (Credit, "min_confidence", 1.1),
    (Credit, "weight", -0.1),
    (Credit, "weight", INF),
    (Credit, "power", -0.1),
    (Credit, "decay", 1.1),
    (Credit, "credits", 0),
    (Credit, "credits", 1000),
    (Saber, "number", 0),
    (Saber, "number", 1.5),
    (PC, "position_weight", -0.1),
    (QuotaThreshold, "min_confidence", 1.1),
    (QuotaThreshold, "at_least", 0),
    (Editing, "min_confidence", 1.1),
    (Editing, "edit_confidence", -0.1),
    (Editing, "at_least", 0),
    (Editing, "max_post_steps", -1),
    (PC, "position_weight", INF),
    (PC, "max_score", 0),
    (PC, "frequencies", "words.safetensors"),
    (PC, "frequencies", [0.5, 0.5]),
    (WINO, "min_confidence", 1.1),
    (WINO, "min_shadow", -0.1),
    (WINO, "accept_share", 0),
    (WINO, "accept_least", 21),
    (WINO, "accept_most", 0),
    (WINO, "first_allowance", 0),
    (Dawn, "min_confidence", 1.1),
    (Dawn, "induced_confidence", -0.1),
    (Dawn, "low_confidence", 2),
    (Dawn, "sink", -0.1),
    (Dawn, "edge", 1.5),
    (Dawn, "layers", 0),
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
    (Threshold, "fallback", "best"),
    (Threshold, "fallback", None),
    (EntropyBound, "fallback", 0),
    (LESS, "fallback", "frontier"),
    (KLASS, "fallback", True),
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
    (EntropyThreshold, ("max_entropy",)),
    (LocalLeap, ("min_confidence", "relaxed_confidence", "radius")),
    (Hierarchy, ("min_confidence", "low_confidence")),
    (FirstMask, ("min_confidence", "window", "along_confidence", "along_jsd", "revoke_below")),
    (Credit, ("min_confidence", "weight", "power", "decay", "credits")),
    (Saber, ("number",)),
    (PC, ("position_weight", "max_score")),
    (QuotaThreshold, ("min_confidence", "at_least", "temperature", "top_p", "top_k")),
    (Editing, ("min_confidence", "edit_confidence", "at_least", "max_post_steps")),
    (
        WINO,
        ("min_confidence", "min_shadow", "accept_share", "accept_least", "accept_most", "first_allowance"),
    ),
    (Dawn, ("min_confidence", "induced_confidence", "low_confidence", "sink", "edge", "layers")),
    (Base, ("order_temperature", "temperature", "top_p", "top_k")),
    (Selection, ("temperature", "top_p", "top_k")),
    (Options, ("min_new_tokens",)),
]


@pytest.mark.parametrize(("kind", "name", "value"), BAD_FIELDS)
def test_a_field_outside_its_range_is_refused_with_its_name_and_value(kind, name, value):
    with raises_field(name, value):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NUMBERS for name in names])
def test_nan_is_never_a_threshold(kind, name):
    with raises_field(name, NAN):
        kind(**{name: NAN})


def test_ids_in_a_list_as_a_preset_file_has_them_become_a_tuple():
    assert Base(demoted_ids=[3, 4]) == Base(demoted_ids=(3, 4))
    hash(Base(demoted_ids=[3, 4]))


@pytest.mark.parametrize("value", [NAN, INF, 0, -0.5, 1.5, "1", None])
def test_a_top_p_is_always_refused_with_the_same_range(value):
    with raises_field("top_p", value, "(0, 1]"):
        Selection(top_p=value)


def test_every_number_of_every_sampler_is_checked_here():
    listed = {(kind, name) for kind, names in NUMBERS for name in names}
    kinds = {type(inner(sampler)) for sampler in SAMPLERS.values()}
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
            with raises_field(item.name, -7):
                make_sampler(name, **{item.name: -7})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("les", "less"), ("klas", "klass"), ("treshold", "threshold"), ("Less", "less"), ("KLAS", "klass")],
)
def test_an_unknown_sampler_is_answered_with_the_nearest_name(wrong, right):
    with raises_field("sampler", wrong, f"did you mean {right!r}?", "`unmask samplers`"):
        make_sampler(wrong)


def test_an_unknown_sampler_that_resembles_nothing_gets_the_command_that_lists_all_and_no_guess():
    with raises_field("sampler", "zzz", "`unmask samplers`") as caught:
        make_sampler("zzz")
    assert "did you mean" not in str(caught.value)


def test_an_unknown_field_is_answered_with_the_nearest_field():
    with raises_field("max_jds", 0.1, "'less'", "did you mean 'max_jsd'?"):
        make_sampler("less", max_jds=0.1)


@pytest.mark.parametrize(
    ("arguments", "field", "value", "allowed"),
    [
        ({"steps": 0}, "steps", 0, "1"),
        ({"steps": -4}, "steps", -4, "1"),
        ({"length": 0}, "length", 0, "1"),
        ({"block_length": 0}, "block_length", 0, "8"),
        ({"block_length": -2}, "block_length", -2, "8"),
        ({"block_length": 9}, "block_length", 9, "8"),
        ({"block_length": 3, "steps": 2}, "steps", 2, "3"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(arguments, field, value, allowed):
    with raises_field(field, value, allowed):
        plan(5, **{"length": 8, "steps": 8, **arguments})


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({"prompts": []}, "prompts", []),
        ({"prompts": [[2], []]}, "prompts[1]", []),
        ({"prompts": [[2], [3, 0, 4]]}, "prompts[1]", 0),
        ({"length": 0}, "length", 0),
        ({"length": -1}, "length", -1),
        ({"pins": {4: 2}}, "pins", 4),
        ({"pins": {-1: 2}}, "pins", -1),
        ({"pins": {1: 0}}, "pins[1]", 0),
    ],
)
def test_a_canvas_that_cannot_be_made_is_refused(arguments, field, value):
    with raises_field(field, value):
        blank(**{"prompts": [[2]], "length": 4, "mask_id": 0, "pad_id": 0, **arguments})


@pytest.mark.parametrize("start", [0, 2])
def test_a_plan_that_reaches_outside_the_generated_columns_is_refused_before_any_forward(start):
    model = Toy()
    canvas = blank([[2]], 4, mask_id=0, pad_id=0)
    with raises_field("plan", f"columns {start} to {start + 4}"):
        decode(model, canvas, LESS(), plan(start, 4, steps=4))
    assert model.calls == []


def test_a_vocabulary_of_one_token_is_refused():
    with raises_field("vocab_size", 1):
        run(Scripted([[0.0]] * 6), LESS())


@pytest.mark.parametrize("scale", [-0.5, NAN, INF])
def test_a_guidance_scale_outside_its_range_is_refused(scale):
    with raises_field("guidance", scale):
        Guided.on(Toy(), blank([[2]], 4, mask_id=0, pad_id=0), scale)


def test_an_answer_region_outside_the_generation_is_refused():
    with raises_field("sampler", ANYTHING, "answer_start", "6"):
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
    ("bad", "field", "value"),
    [
        (lambda: Options(schedule="cosine"), "schedule", "cosine"),
        (lambda: Options(min_new_tokens=NAN), "min_new_tokens", NAN),
        (lambda: run(Toy(), LESS(), banned_ids=(-1,)), "banned_ids", (-1,)),
        (lambda: run(Toy(), LESS(), banned_ids=(99,)), "banned_ids", 99),
        (lambda: run(Toy(), Base(demoted_ids=(-1,))), "demoted_ids", (-1,)),
        (lambda: run(Toy(), Base(demoted_ids=(99,))), "demoted_ids", 99),
        (lambda: Selection(top_k=NAN), "top_k", NAN),
        (lambda: Selection(top_k=2.5), "top_k", 2.5),
        (lambda: LESS(persistence=1.5), "persistence", 1.5),
        (lambda: LESS(top_k=2.5), "top_k", 2.5),
        (lambda: KLASS(history=1.5), "history", 1.5),
        (lambda: LESSReleased(end_bar=5.0), "end_bar", 5.0),
        (lambda: LESSReleased(end_floor=2.0), "end_floor", 2.0),
        (lambda: plan(1, 4, steps=2.5), "steps", 2.5),
        (lambda: plan(1, 4, steps=NAN), "steps", NAN),
        (lambda: run(Toy(), LESS(), pins={0: 99}), "canvas", 99),
        (lambda: run(Toy(), LESS(), [[99]]), "canvas", 99),
        (lambda: run(Toy(), LESS(), [[-5]]), "canvas", -5),
        (too_few_seeds, "seeds", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_this_bad_input_is_refused_with_its_field_and_value(bad, field, value):
    with raises_field(field, value):
        bad()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: run(Toy(), LESS(), length=6, min_new_tokens=7), "min_new_tokens .*7"),
        (broken_canvas_mask, "mask"),
        (short_plan, "plan"),
    ],
    ids=["min_new_tokens", "mask", "plan"],
)
def test_a_run_that_does_not_fit_its_canvas_is_refused(bad, message):
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


FLAGS, FLAG = ("torch.bool", "[1, 6]"), ("torch.bool", "[1]")
BAD_DECISIONS = [
    ({"commit": lambda obs: obs.active[:, :-1]}, (*FLAGS, "got torch.bool of shape [1, 5]")),
    ({"commit": lambda obs: obs.active[:, :1]}, (*FLAGS, "got torch.bool of shape [1, 1]")),
    ({"commit": lambda obs: obs.active.float()}, (*FLAGS, "got torch.float32 of shape [1, 6]")),
    ({"commit": lambda obs: None}, (*FLAGS, "got None")),
    ({"eligible": lambda obs: obs.active.long()}, (*FLAGS, "got torch.int64")),
    ({"forced": lambda obs: obs.active}, (*FLAG, "got torch.bool of shape [1, 6]")),
    ({"forced": lambda obs: False}, (*FLAG, "got False")),
    ({"tokens": lambda obs: obs.now.lse}, ("torch.int64", "[1, 6]", "got torch.float32")),
    ({"tokens": lambda obs: obs.drawn[0, 0]}, ("torch.int64", "[1, 6]", "got torch.int64 of shape []")),
]


@pytest.mark.parametrize(("changes", "words"), BAD_DECISIONS)
def test_a_decision_that_does_not_fit_the_window_is_refused_with_the_samplers_name(changes, words):
    [name] = changes
    with raises_field(f"Decision.{name}", ANYTHING, *words) as caught:
        run(Toy(), Own(changes), length=6)
    assert str(caught.value).startswith("Own.decide:")


def test_a_sampler_that_returns_no_decision_is_refused():
    with raises_field("Mute.decide", None):
        run(Toy(), Mute(), length=6)


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
    with pytest.raises(FieldError, match=rf"^{type(sampler).__name__}.decide"):
        run(Altered(lambda logits: logits, executor=fast.GraphExecutor), sampler)


def test_the_checks_break_no_graph_of_a_compiled_decision(traced, monkeypatch):
    whole = cache(lambda work: torch.compile(work, dynamic=False, backend="eager", fullgraph=True))
    monkeypatch.setattr(fast, "_compiled", whole)
    made = run(Altered(lambda logits: logits, executor=fast.GraphExecutor), Own(), length=4)
    assert made.tokens.tolist() == run(Toy(), Own(), length=4).tokens.tolist()


@pytest.mark.parametrize(
    ("needs", "field", "value"),
    [
        (Needs(top_k=0), "Own.needs.top_k", 0),
        (Needs(top_k=2.5), "Own.needs.top_k", 2.5),
        (Needs(lookback=-1), "Own.needs.lookback", -1),
        (Needs(span="yes"), "Own.needs.span", "yes"),
        ({"top_k": 2}, "Own.needs", {"top_k": 2}),
    ],
)
def test_needs_that_cannot_be_met_are_refused_before_any_forward(needs, field, value):
    model = Toy()
    with raises_field(field, value):
        run(model, Own(needs=needs))
    assert model.calls == []


@dataclass(frozen=True)
class Altered:
    """A toy whose logits are changed on their way out."""

    change: object
    executor: object = None
    toy: Toy = field(default_factory=Toy)

    @property
    def info(self):
        return self.toy.info

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
    with raises_field("Decision.tokens", token, "0 to 11"):
        run(Toy(eos_ids=()), sampler)


@pytest.mark.parametrize("sampler", ["less", LESS, None], ids=str)
def test_a_name_where_a_sampler_is_wanted_is_refused(sampler):
    with raises_field("sampler", sampler, "make_sampler('less')"):
        run(Toy(), sampler)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("mini-llada", "unmask.load('mini-llada')"),
        (Path("some/folder"), "unmask.load('some/folder')"),
        (None, "unmask.load"),
        (Toy, "unmask.load"),
    ],
)
def test_a_name_where_a_model_is_wanted_is_refused(model, remedy):
    canvas = blank([[2]], 4, mask_id=0, pad_id=0)
    with raises_field("model", model, remedy):
        decode(model, canvas, LESS(), plan(1, 4, steps=4))
    with raises_field("model", model, remedy):
        next(denoise(model, canvas, LESS(), plan(1, 4, steps=4)))


def test_ruling_out_every_token_is_not_blamed_on_the_model():
    with pytest.raises(ValueError, match="banned"):
        run(Toy(), LESS(), banned_ids=tuple(range(12)))


# the error itself


def test_an_error_of_a_field_is_copied_and_pickled_whole():
    error = FieldError("steps", 0, "must be >= 1", "raise it", "recipe.toml")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.field, again.value) == (str(error), "steps", 0)
    check_message(error, "recipe.toml: steps", "raise it")


def test_an_error_keeps_its_place_in_a_path_under_another_name():
    error = FieldError("prompts[1].role", "usr", "must be known").renamed("messages")
    assert (error.field, error.root, error.value) == ("messages[1].role", "messages", "usr")


def test_an_error_inside_a_file_inside_a_folder_names_both():
    error = FieldError("steps", 0, "must be >= 1").inside("schedule").inside("recipe.toml")
    assert (error.field, error.where) == ("steps", "recipe.toml: schedule")
    check_message(error, "recipe.toml: schedule: steps")


@pytest.mark.parametrize("value", ["word " * 1000, torch.zeros(3, 4000), torch.nn.Linear(2, 2), "two\nlines"])
def test_a_long_value_takes_one_short_line(value):
    error = FieldError("prompts", value, "must be shorter")
    check_message(error)
    assert len(str(error)) < 200


def test_a_choice_that_is_no_string_gets_no_suggestion():
    with raises_field("sampler", 3) as caught:
        one_of("sampler", 3, ["base", "less"])
    assert caught.value.remedy == ""
    with raises_field("zzz", 1, "available: max_jsd"):
        known_field("zzz", 1, ["max_jsd"], "the sampler 'less'")
