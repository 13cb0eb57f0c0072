"""Every sampler's rule on Observations made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.toy import Toy, committed, drawing, log_probs, observe, predict
from unmask import (
    KLASS,
    LESS,
    SAMPLERS,
    Base,
    EndLast,
    EntropyBound,
    EntropyThreshold,
    Factor,
    GenerationConfig,
    Hierarchy,
    LESSReleased,
    LocalLeap,
    Prophet,
    Threshold,
    generate,
    make_sampler,
)
from unmask.types import Prediction

INF = math.inf


def sure(*confidences: float, winners: list[int] | None = None, vocabulary: int = 4) -> Prediction:
    """A prediction whose column j gives its winner (token 0, or as told) the j-th confidence."""
    rows = []
    for column, top in enumerate(confidences):
        row = [(1 - top) / (vocabulary - 1)] * vocabulary
        row[winners[column] if winners else 0] = top
        rows.append(row)
    return predict(log_probs(rows))


def forced(decision) -> bool:
    return bool(decision.forced[0])


# the registry


def test_make_sampler_is_a_preset_with_some_fields_changed():
    assert make_sampler("less") == LESS()
    assert make_sampler("less", max_jsd=0.1) == LESS(max_jsd=0.1)
    assert make_sampler("less-paper", lookahead=3) == LESS(policy="frontier", patience=2, lookahead=3)
    assert make_sampler("less-first-mask", max_jsd=0.1) == EndLast(LESS(fallback="first", max_jsd=0.1))
    assert make_sampler("klass-llada-gsm8k") == KLASS(min_confidence=0.6, max_kl=0.015)
    assert SAMPLERS["less"] == LESS(), "a preset is never changed in place"


def test_the_defaults_are_the_paper_s_constants():
    less = LESS()
    assert (less.min_confidence, less.max_jsd, less.top_k) == (0.75, 0.040, 8)
    assert (less.persistence, less.lookahead) == (2, 16)
    assert SAMPLERS["less-paper"].patience == 2
    assert SAMPLERS["less-margin-only"].min_margin == 0.20


def test_samplers_are_values():
    for sampler in SAMPLERS.values():
        assert sampler == replace(sampler)
        assert hash(sampler) == hash(replace(sampler))


# base


def test_base_commits_the_quota_of_most_confident_positions():
    now = sure(0.5, 0.9, 0.6, 0.8)
    assert committed(Base().decide(observe(now, quota=2))) == ".x.x"
    assert committed(Base().decide(observe(now, quota=2, active="m.mm"))) == "..xx"
    assert committed(Base().decide(observe(now, quota=0))) == "...."


def test_base_is_never_forced_and_calls_what_it_commits_eligible():
    decision = Base().decide(observe(sure(0.5, 0.9)))
    assert not forced(decision)
    assert drawing(decision.eligible) == committed(decision)


def test_base_by_confidence_scores_the_token_that_was_drawn():
    now = predict(log_probs([[0.6, 0.4], [0.9, 0.1]]))
    drawn = torch.tensor([[1, 1]])
    assert committed(Base().decide(observe(now, drawn=drawn))) == "x."
    assert committed(Base().decide(observe(now))) == ".x"


def test_base_by_margin_and_by_entropy_rank_differently_from_confidence():
    # confidence: column 0; margin: column 1; entropy: column 2
    now = predict(log_probs([[0.52, 0.4, 0.04, 0.04], [0.5, 0.17, 0.17, 0.16], [0.5, 0.5, 0.0, 0.0]]))
    assert committed(Base().decide(observe(now))) == "x.."
    assert committed(Base(order="margin").decide(observe(now))) == ".x."
    assert committed(Base(order="entropy").decide(observe(now))) == "..x"


def test_base_at_random_ranks_by_the_noise():
    noise = torch.tensor([[0.2, 0.9, 0.5]])
    assert committed(Base(order="random").decide(observe(sure(0.9, 0.1, 0.5), noise=noise, quota=2))) == ".xx"


def test_base_origin_frees_each_position_with_the_schedule_s_chance():
    noise = torch.tensor([[0.2, 0.9, 0.49, 0.51]])
    observation = observe(sure(0.9, 0.1, 0.5, 0.5), noise=noise, rate=0.5, quota=0)
    assert committed(Base(order="origin").decide(observation)) == "x.x."


def test_order_temperature_ranks_by_draws_from_the_softmax_of_the_scores():
    temperature, rounds = 0.25, 4000
    sampler = Base(order_temperature=temperature)
    assert sampler.needs.noise
    now = sure(0.9, 0.6, 0.5)
    generator = torch.Generator().manual_seed(0)
    wins = [0, 0, 0]
    for _ in range(rounds):
        noise = torch.rand(1, 3, generator=generator).clamp(min=1e-9)
        wins[committed(sampler.decide(observe(now, noise=noise))).index("x")] += 1
    expected = (torch.tensor([0.9, 0.6, 0.5]) / temperature).softmax(-1) * rounds
    chi_square = sum((win - want) ** 2 / want for win, want in zip(wins, expected.tolist(), strict=True))
    assert chi_square < 13.8  # 2 degrees of freedom, p = 0.001


def test_a_low_order_temperature_is_the_plain_order():
    noise = torch.tensor([[0.001, 0.999, 0.999]])
    now = sure(0.9, 0.6, 0.5)
    assert committed(Base(order_temperature=1e-4).decide(observe(now, noise=noise))) == "x.."


def test_positions_that_would_take_a_demoted_token_rank_last():
    now = sure(0.99, 0.4, 0.5, winners=[1, 0, 0])
    assert committed(Base().decide(observe(now, quota=2))) == "x.x"
    assert committed(Base(demoted_ids=(1,)).decide(observe(now, quota=2))) == ".xx"
    assert committed(Base(demoted_ids=(1,)).decide(observe(now, quota=3))) == "xxx"


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 0.5}], ids=str)
def test_demoted_positions_rank_last_after_a_filter_too(fields):
    now = sure(0.99, 0.4, 0.5, winners=[1, 0, 0])
    assert committed(Base(demoted_ids=(1,), **fields).decide(observe(now, quota=2))) == ".xx"


def test_base_scores_the_distribution_after_its_filters():
    # untouched: column 0 is surer; top-k of 2 leaves .55 : .45 and .45 : .05
    now = predict(log_probs([[0.5, 0.4, 0.05, 0.05], [0.45, 0.05, 0.25, 0.25]]))
    assert committed(Base().decide(observe(now))) == "x."
    hot = Base(temperature=0.2)
    assert committed(hot.decide(observe(now))) == ".x"
    assert now.full_logits.isfinite().all(), "the given logits stay untouched"


def test_base_origin_frees_nothing_outside_the_block():
    noise = torch.tensor([[0.1, 0.1]])
    observation = observe(sure(0.9, 0.9), noise=noise, active="m.", masked="mm")
    assert committed(Base(order="origin").decide(observation)) == "x."


@pytest.mark.parametrize(
    "sampler", [Base(), Base(order="margin"), Base(order="entropy"), Threshold(), Factor(factor=0.0), KLASS()]
)
def test_of_many_equal_positions_the_leftmost_is_committed(sampler):
    assert committed(sampler.decide(observe(sure(*[0.5] * 500)))) == "x" + "." * 499


def test_of_many_equal_positions_the_entropy_bound_takes_the_leftmost():
    coin = predict(log_probs([[0.5, 0.5]] * 500))
    assert committed(EntropyBound(bound=1.0).decide(observe(coin))) == "xx" + "." * 498


# threshold, factor, entropy bound


def test_threshold_commits_every_sure_position_and_at_least_the_best():
    sampler = Threshold(min_confidence=0.8)
    decision = sampler.decide(observe(sure(0.9, 0.5, 0.85)))
    assert (committed(decision), forced(decision)) == ("x.x", False)
    decision = sampler.decide(observe(sure(0.3, 0.5, 0.4)))
    assert (committed(decision), forced(decision), drawing(decision.eligible)) == (".x.", True, "...")


def test_threshold_accepts_equality_and_looks_at_active_positions_only():
    half = predict([[0.0, 0.0, -INF], [9.0, 0.0, 0.0]])
    assert float(half.top_probs[0, 0, 0]) == 0.5
    assert committed(Threshold(min_confidence=0.5).decide(observe(half, active="m."))) == "x."


def test_factor_asks_more_of_every_further_rank():
    # bars 1 - 1/2, 1 - 1/3, 1 - 1/4: .5, .667, .75
    assert committed(Factor().decide(observe(sure(0.7, 0.9, 0.8)))) == ".xx"
    assert committed(Factor().decide(observe(sure(0.76, 0.9, 0.8)))) == "xxx"
    assert committed(Factor(factor=0.5).decide(observe(sure(0.76, 0.9, 0.8)))) == ".x."  # .75, .833


def test_factor_stops_at_the_first_rank_that_misses_even_if_a_later_one_would_pass():
    decision = Factor(factor=0.3).decide(observe(sure(0.86, 0.86, 0.99)))  # bars .85, .9, .925
    assert committed(decision) == "..x"


def test_the_first_rank_is_free_and_then_forced():
    decision = Factor().decide(observe(sure(0.3, 0.45, 0.4)))
    assert (committed(decision), forced(decision), drawing(decision.eligible)) == (".x.", True, "...")
    assert not forced(Factor().decide(observe(sure(0.6, 0.45, 0.4))))


def test_factor_released_commits_the_last_rank_too():
    released = Factor(last_rank_free=True)
    assert committed(released.decide(observe(sure(0.7, 0.9, 0.8)))) == "xxx"  # rank 3 misses .75 and is free
    assert committed(released.decide(observe(sure(0.5, 0.9, 0.6)))) == ".x."  # rank 2 misses before the last
    assert committed(released.decide(observe(sure(0.3, 0.4, 0.9), active="mm."))) == "xx."


def test_entropy_bound_leaves_the_largest_entropy_out_of_the_sum():
    certain, coin, die = [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.25] * 4
    now = predict(log_probs([coin, certain, die]))
    assert committed(EntropyBound(bound=0.0).decide(observe(now))) == "xx."  # 0, then 0 + (ln 2)
    assert committed(EntropyBound(bound=0.7).decide(observe(now))) == "xxx"  # ln 2 = .693
    assert committed(EntropyBound(bound=0.6).decide(observe(now))) == "xx."
    assert committed(EntropyBound(bound=0.0).decide(observe(now, active="..m"))) == "..x"


# klass


def klass_step(sampler: KLASS, confidence: float, recent: list[float], **observed):
    """A step whose newest divergence is 0 (the same prediction twice) and whose older ones are given."""
    now = sure(confidence, 0.3)
    carry = torch.tensor([[recent, [INF] * len(recent)]])
    return sampler.decide(observe(now, now, carry=carry, step=9, **observed))


def test_klass_needs_every_recent_divergence_below_the_bar():
    sampler = KLASS(min_confidence=0.9, max_kl=0.01, history=3)
    assert not forced(klass_step(sampler, 0.95, [0.001, 0.009]))
    assert forced(klass_step(sampler, 0.95, [0.001, 0.01]))  # below, not at
    assert forced(klass_step(sampler, 0.95, [0.02, 0.001]))
    assert forced(klass_step(sampler, 0.5, [0.001, 0.001]))


def test_klass_carries_its_divergences_newest_first():
    sampler, now, before = KLASS(history=3), sure(0.9), sure(0.5)
    decision = sampler.decide(observe(now, before, carry=torch.tensor([[[0.25, 0.5]]])))
    kl = float(decision.signals["kl"])
    assert decision.carry.tolist() == [[[pytest.approx(kl), 0.25]]]
    first = sampler.decide(observe(now))
    assert first.carry.tolist() == [[[INF, INF]]]


def test_klass_is_strict_inside_a_block_and_not_on_a_full_sequence():
    half = predict([[0.0, 0.0, -INF], [0.0, 0.0, 0.0]])
    sampler = KLASS(min_confidence=0.5, max_kl=0.01, history=1)
    full = sampler.decide(observe(half, half, step=5))
    block = sampler.decide(observe(half, half, step=5, blockwise=True))
    assert (committed(full), forced(full)) == ("x.", False)
    assert forced(block)


def test_klass_waits_in_every_block_but_not_on_a_full_sequence():
    sampler, now = KLASS(history=2), sure(0.95)
    carry = torch.zeros(1, 1, 1)
    assert forced(sampler.decide(observe(now, now, carry=carry, step=0, blockwise=True)))
    assert not forced(sampler.decide(observe(now, now, carry=carry, step=1, blockwise=True)))
    assert not forced(sampler.decide(observe(now, now, carry=carry, step=0)))


def test_klass_falls_back_on_the_quota_in_a_block_and_on_one_position_elsewhere():
    now = sure(0.3, 0.5, 0.4)
    assert committed(KLASS().decide(observe(now, quota=2, blockwise=True))) == ".xx"
    assert committed(KLASS().decide(observe(now, quota=2))) == ".x."
    assert committed(KLASS().decide(observe(now, quota=5, blockwise=True, active="mm."))) == "xx."


@pytest.mark.parametrize(
    ("strategy", "expected"), [("all", "xxx."), ("max_conf", "..x."), ("min_kl", "x..."), ("random", ".x..")]
)
def test_klass_strategies_choose_among_the_ready(strategy, expected):
    before, now = sure(0.92, 0.92, 0.92, 0.3), sure(0.921, 0.93, 0.94, 0.3)
    sampler = KLASS(history=1, max_kl=0.05, unmask_strategy=strategy)
    assert sampler.needs.noise == (strategy == "random")
    noise = torch.tensor([[0.1, 0.7, 0.3, 0.9]])
    assert committed(sampler.decide(observe(now, before, noise=noise, step=3))) == expected


def test_klass_commits_the_argmax_whatever_was_drawn():
    decision = KLASS().decide(observe(sure(0.4, 0.5), drawn=torch.tensor([[3, 3]])))
    assert decision.tokens.tolist() == [[0, 0]]


# entropy threshold


def test_the_entropy_threshold_commits_every_position_of_low_entropy_or_the_lowest():
    now = predict([[9.0, 0.0, 0.0], [0.0, 0.0, -INF], [0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    decision = EntropyThreshold(max_entropy=0.5).decide(observe(now))
    assert (committed(decision), forced(decision)) == ("x..x", False)
    assert decision.signals["entropy"][0, 1:3].tolist() == pytest.approx([math.log(2), math.log(3)])
    lowest = EntropyThreshold(max_entropy=0.5).decide(observe(now, active=".mm."))
    assert (committed(lowest), forced(lowest)) == (".x..", True)
    assert committed(EntropyThreshold(max_entropy=0.7).decide(observe(now))) == "xx.x"
    assert committed(EntropyThreshold(max_entropy=0.0).decide(observe(now, active="m..m"))) == "x..."


# local leap


def test_local_leap_relaxes_its_bar_within_the_radius_of_an_anchor():
    now = sure(0.8, 0.8, 0.5, 0.95, 0.7, 0.8, 0.8)
    decision = LocalLeap(radius=2).decide(observe(now))
    assert (committed(decision), forced(decision)) == (".x.x.x.", False)
    assert drawing(decision.signals["near_anchor"]) == ".xxxxx."
    assert committed(LocalLeap(radius=0).decide(observe(now))) == "...x..."
    assert committed(LocalLeap(radius=9).decide(observe(now))) == "xx.x.xx"
    assert committed(SAMPLERS["local-leap-dream"].decide(observe(sure(0.78, 0.95, 0.82)))) == ".xx"


def test_local_leap_counts_columns_that_are_taken_and_takes_none_of_them_for_an_anchor():
    now = sure(0.8, 0.99, 0.99, 0.95)
    assert committed(LocalLeap(radius=2).decide(observe(now, active="m..m"))) == "...x"
    assert committed(LocalLeap(radius=3).decide(observe(now, active="m..m"))) == "x..x"


def test_local_leap_without_an_anchor_commits_the_best():
    decision = LocalLeap().decide(observe(sure(0.8, 0.89, 0.85)))
    assert (committed(decision), forced(decision)) == (".x.", True)


# hierarchy


def test_hierarchy_commits_the_best_of_every_run_of_masks():
    now = sure(0.5, 0.6, 0.99, 0.5, 0.45, 0.99, 0.39)
    decision = Hierarchy().decide(observe(now, active="mm.mm.m"))
    assert (committed(decision), forced(decision)) == (".x.x...", False)
    assert drawing(decision.signals["best_of_run"]) == ".x.x..x"


def test_hierarchy_commits_confident_positions_wherever_they_stand():
    assert committed(Hierarchy().decide(observe(sure(0.95, 0.92, 0.5, 0.99)))) == "xx.x"


def test_both_thresholds_of_hierarchy_are_strict():
    halves = predict([[0.0, 0.0, -INF], [0.0, 0.0, 0.0]])
    assert forced(Hierarchy(min_confidence=0.5, low_confidence=0.5).decide(observe(halves)))
    lower = Hierarchy(min_confidence=0.5, low_confidence=0.49).decide(observe(halves))
    assert (committed(lower), forced(lower)) == ("x.", False)


def test_equal_positions_of_a_run_commit_together_but_the_fallback_is_one():
    now = sure(0.6, 0.6, 0.5)
    assert committed(Hierarchy().decide(observe(now))) == "xx."
    fallback = Hierarchy(low_confidence=0.7).decide(observe(now))
    assert (committed(fallback), forced(fallback)) == ("x..", True)


# prophet


def gaps(*values: float) -> Prediction:
    return predict([[value, 0.0, -50.0] for value in values])


@pytest.mark.parametrize(
    ("gap", "progress", "leaves"),
    [
        (7.5, 0.1, True), (7.4, 0.1, False), (7.4, 0.329, False), (5.0, 0.34, True), (4.9, 0.5, False),
        (4.9, 0.66, False), (2.5, 0.68, True), (2.4, 1.0, False),
    ],
)  # fmt: skip
def test_prophet_needs_less_of_a_gap_in_every_further_third(gap, progress, leaves):
    for sampler, past in (
        (Prophet(answer_start=0, answer_length=3), ()),
        (Prophet(), (gaps(gap, gap, gap),)),
    ):
        decision = sampler.decide(observe(gaps(gap, gap, gap), *past, progress=progress, quota=1))
        assert committed(decision) == ("xxx" if leaves else "x..")


@pytest.mark.parametrize(
    ("sampler", "steps"),
    [(Prophet(answer_start=0), (85, 172)), (Prophet(), (86, 171))],
    ids=["answer", "all"],
)
def test_the_two_forms_change_phase_at_the_steps_of_their_references(sampler, steps):
    needed = sampler.needed(torch.arange(1, 257) / 256).tolist()
    assert needed.index(5.0) + 1 == steps[0]
    assert needed.index(2.5) + 1 == steps[1]
    assert sorted(needed, reverse=True) == needed


def test_prophet_s_answer_region_is_fixed_and_counts_decoded_positions():
    sampler = Prophet(answer_start=1, answer_length=2)
    now = gaps(0.0, 9.0, 7.0, 0.0)
    assert committed(sampler.decide(observe(now, progress=0.1, active="m..m"))) == "x..x"
    assert committed(sampler.decide(observe(gaps(9.0, 7.0, 7.0, 9.0), progress=0.1))) == "x..."


def test_prophet_s_answer_region_ends_with_the_generation():
    sampler = Prophet(answer_start=2, answer_length=5)
    assert committed(sampler.decide(observe(gaps(0.0, 0.0, 9.0, 7.0), progress=0.1))) == "xxxx"
    assert committed(sampler.decide(observe(gaps(9.0, 9.0, 7.0, 7.0), progress=0.1))) == "x..."


def test_a_generation_that_ends_before_the_answer_region_is_refused_before_any_forward():
    model, config = Toy(), GenerationConfig(max_new_tokens=6)
    for sampler in (Prophet(answer_start=6), Prophet(answer_start=600)):
        with pytest.raises(ValueError, match=f"answer_start={sampler.answer_start}"):
            generate(model, [[2]], sampler, config)
    assert model.calls == []


def test_the_full_sequence_form_averages_over_masked_positions_only():
    sampler, now = Prophet(), gaps(9.0, 0.0, 7.0)
    assert committed(sampler.decide(observe(now, now, progress=0.1, active="m.m"))) == "x.x"
    assert committed(sampler.decide(observe(now, now, progress=0.1))) == "x.."


def test_the_full_sequence_form_waits_until_no_masked_argmax_changes():
    sampler, now, changed = Prophet(), gaps(9.0, 9.0), predict([[9.0, 0.0, -50.0], [0.0, 9.0, -50.0]])
    assert committed(sampler.decide(observe(now, progress=1.0))) == "x."  # nothing to compare with
    assert committed(sampler.decide(observe(now, changed, progress=1.0))) == "x."
    assert committed(sampler.decide(observe(now, now, progress=1.0))) == "xx"
    assert committed(sampler.decide(observe(now, changed, progress=1.0, active="m."))) == "x."


def test_the_gate_watches_the_masks_of_later_blocks_too():
    now, changed = gaps(9.0, 9.0), predict([[9.0, 0.0, -50.0], [0.0, 9.0, -50.0]])
    for before, expected in ((now, "xx"), (changed, "x.")):
        decision = Prophet().decide(observe(now, before, progress=1.0, active="m.", masked="mm"))
        assert committed(decision) == expected


def test_prophet_leaves_with_every_mask_of_the_generation_and_with_its_argmax():
    now, drawn = gaps(9.0, 9.0, 9.0), torch.tensor([[1, 1, 1]])
    decision = Prophet().decide(observe(now, now, progress=0.5, active="m..", masked="mm.", drawn=drawn))
    assert committed(decision) == "xx."
    assert decision.tokens.tolist() == [[0, 0, 0]]
    stays = Prophet().decide(observe(gaps(0.1, 0.1), progress=0.5, drawn=drawn[:, :2]))
    assert stays.tokens.tolist() == [[1, 1]]


def test_prophet_decodes_with_its_base_until_it_leaves():
    now = predict(log_probs([[0.52, 0.4, 0.04, 0.04], [0.5, 0.5, 0.0, 0.0]]))
    assert committed(Prophet().decide(observe(now, progress=0.1))) == "x."
    assert committed(SAMPLERS["prophet-dream"].decide(observe(now, progress=0.1))) == ".x"


# less


def test_less_needs_confidence_persistence_and_a_small_divergence_together():
    steady = sure(0.8, 0.8, 0.8, 0.5)
    jumped = sure(0.8, 0.4, 0.8, 0.5, winners=[0, 0, 1, 0])
    decision = LESS(policy="all").decide(observe(steady, jumped))
    # column 1 moved too far, column 2 changed its winner, column 3 is not sure
    assert drawing(decision.eligible) == "x..."
    assert set(decision.signals) == {"confidence", "persistence", "jsd"}


@pytest.mark.parametrize(
    ("name", "eligible"),
    [
        ("less-confidence-only", "xxx."),
        ("less-jsd-only", "x..x"),
        ("less-persistence-only", "xx.x"),
        ("less-margin-only", "xxxx"),
        ("less-no-confidence", "x..x"),
        ("less-no-jsd", "xx.."),
        ("less-no-persistence", "x..."),
    ],
)
def test_ablations_neutralise_thresholds(name, eligible):
    steady = sure(0.8, 0.8, 0.8, 0.5)
    jumped = sure(0.8, 0.4, 0.8, 0.5, winners=[0, 0, 1, 0])
    assert drawing(SAMPLERS[name].decide(observe(steady, jumped)).eligible) == eligible


def test_the_margin_is_that_of_probabilities():
    now = predict(log_probs([[0.5, 0.25, 0.25], [0.5, 0.35, 0.15]]))
    assert drawing(SAMPLERS["less-margin-only"].decide(observe(now)).eligible) == "x."


def test_thresholds_accept_equality():
    half = predict([[0.0, 0.0, -INF]])
    assert drawing(LESS(min_confidence=0.5, max_jsd=0.0).decide(observe(half, half)).eligible) == "x"


def test_nothing_is_eligible_at_the_first_observation_while_jsd_or_persistence_count():
    now = sure(1.0, 1.0)
    assert drawing(LESS().decide(observe(now)).eligible) == ".."
    assert drawing(LESS(persistence=1).decide(observe(now)).eligible) == ".."
    assert drawing(LESS(max_jsd=INF).decide(observe(now)).eligible) == ".."
    assert drawing(LESS(persistence=1, max_jsd=INF).decide(observe(now)).eligible) == "xx"


@pytest.mark.parametrize(
    ("confidences", "policy", "expected"),
    [
        ([0.9, 0.9, 0.1, 0.9], "frontier", "x..."),
        ([0.9, 0.9, 0.1, 0.9], "run", "xx.."),
        ([0.9, 0.9, 0.1, 0.9], "all", "xx.x"),
        ([0.3, 0.9, 0.1, 0.9], "frontier", ".x.."),
        ([0.3, 0.9, 0.9, 0.9], "run", ".x.."),
        ([0.3, 0.9, 0.1, 0.9], "all", ".x.x"),
    ],
)
def test_the_policy_chooses_among_the_eligible(confidences, policy, expected):
    now = sure(*confidences)
    assert committed(LESS(policy=policy).decide(observe(now, now))) == expected
    block = LESS(policy="all", block_policy=policy).decide(observe(now, now, blockwise=True))
    assert committed(block) == expected


def test_the_lookahead_bounds_what_frontier_policies_see_and_all_sees_everything():
    now = sure(0.3, 0.3, 0.9)
    for policy in ("frontier", "run"):
        assert forced(LESS(policy=policy, lookahead=1).decide(observe(now, now)))
        assert not forced(LESS(policy=policy, lookahead=2).decide(observe(now, now)))
    assert not forced(LESS(policy="all", lookahead=0).decide(observe(now, now)))


def test_the_forced_action_is_the_frontier_or_the_quota_of_a_block_and_at_least_one():
    now = sure(0.3, 0.5, 0.4)
    assert committed(LESS().decide(observe(now, quota=2))) == "x.."
    assert committed(LESS().decide(observe(now, quota=2, blockwise=True))) == ".xx"
    assert committed(LESS().decide(observe(now, quota=0, blockwise=True))) == ".x."


def test_less_skips_as_often_as_it_has_patience_and_any_commit_resets_it():
    sampler, unsure, steady = LESS(patience=2), sure(0.3, 0.3), sure(0.9, 0.9)
    carry, seen = None, []
    for _ in range(4):
        decision = sampler.decide(observe(unsure, carry=carry))
        carry = decision.carry
        seen.append((committed(decision), forced(decision), int(carry[0])))
    assert seen == [("..", False, 1), ("..", False, 2), ("x.", True, 0), ("..", False, 1)]
    accepted = sampler.decide(observe(steady, steady, carry=torch.tensor([2])))
    assert (committed(accepted), forced(accepted), accepted.carry.tolist()) == ("xx", False, [0])


def test_less_asks_the_loop_for_no_more_than_it_uses():
    assert (LESS().needs.lookback, LESS().needs.gather_logits, LESS().needs.top_k) == (1, True, 8)
    assert (LESS(persistence=4).needs.lookback, LESS(persistence=1).needs.lookback) == (3, 1)
    off = SAMPLERS["less-confidence-only"].needs
    assert (off.lookback, off.gather_logits) == (0, False)
    assert not LESS(exact=False).needs.gather_logits
    assert not LESS().needs.logits
    assert LESS(top_k=1).needs.top_k == 2


# less as released


def test_less_released_wants_p_earlier_winners():
    sampler, now = LESSReleased(), sure(0.9, 0.9)
    assert drawing(sampler.decide(observe(now, now)).eligible) == ".."
    assert drawing(sampler.decide(observe(now, now, now)).eligible) == "xx"


def test_less_released_takes_the_surest_of_the_lookahead_twice_and_then_forces_the_frontier():
    sampler, now = LESSReleased(lookahead=2), sure(0.3, 0.8, 0.9, 0.99)
    carry, seen = None, []
    for _ in range(4):
        decision = sampler.decide(observe(now, now, now, carry=carry))
        carry = decision.carry
        seen.append((committed(decision), forced(decision), int(carry[0])))
    assert seen == [("..x.", False, 1), ("..x.", False, 2), ("x...", True, 0), ("..x.", False, 1)]


def test_less_released_commits_the_run_from_the_frontier_and_forces_the_argmax():
    sampler, drawn = LESSReleased(), torch.tensor([[2, 2, 2]])
    run = sampler.decide(observe(*[sure(0.9, 0.9, 0.3)] * 3, drawn=drawn))
    assert (committed(run), run.tokens.tolist()) == ("xx.", [[2, 2, 2]])
    force = sampler.decide(observe(*[sure(0.3, 0.3, 0.3)] * 3, drawn=drawn))
    assert (committed(force), force.tokens.tolist()) == ("x..", [[0, 0, 0]])


@pytest.mark.parametrize(
    ("confidence", "progress", "accepted"),
    [(0.895, 0.0, False), (0.905, 0.0, True), (0.845, 0.5, False), (0.855, 0.5, True), (0.805, 1.0, True)],
)
def test_less_released_raises_the_bar_for_the_end_token_by_progress(confidence, progress, accepted):
    now = sure(confidence, 0.2)
    history = [now] * 3
    as_end = LESSReleased().decide(observe(*history, progress=progress, eos_ids=(0,)))
    as_word = LESSReleased().decide(observe(*history, progress=progress, eos_ids=(3,)))
    assert drawing(as_end.eligible) == ("x." if accepted else "..")
    assert drawing(as_word.eligible) == "x."


def test_less_released_halves_the_allowed_drift_of_the_end_token_and_has_a_floor():
    now, before = sure(0.96, 0.2), sure(0.83, 0.2)
    decision = LESSReleased().decide(observe(now, before, before, eos_ids=(0,)))
    assert 0.02 < float(decision.signals["jsd"][0, 0]) < 0.04
    assert drawing(decision.eligible) == ".."
    assert (
        drawing(LESSReleased(end_jsd_factor=1.0).decide(observe(now, before, before, eos_ids=(0,))).eligible)
        == "x."
    )
    floored = LESSReleased(end_bar=0.0, end_floor=0.97)
    assert drawing(floored.decide(observe(now, now, now, eos_ids=(0,))).eligible) == ".."


def test_less_released_has_no_end_bars_in_a_block_and_commits_all_or_the_quota():
    now = sure(0.8, 0.3, 0.8)
    history = [now] * 3
    assert committed(LESSReleased().decide(observe(*history, blockwise=True, eos_ids=(0,)))) == "x.x"
    decision = LESSReleased().decide(observe(*[sure(0.3, 0.5, 0.4)] * 3, blockwise=True, quota=2))
    assert (committed(decision), forced(decision)) == (".xx", True)
    none_left = LESSReleased().decide(observe(*[sure(0.3, 0.5)] * 3, blockwise=True, quota=0))
    assert committed(none_left) == ".x"


def test_less_released_lets_a_drift_threshold_of_one_pass_at_the_first_step():
    # as released: the missing history counts as a drift of 1
    decision = LESSReleased(max_jsd=1.0).decide(observe(sure(0.9)))
    assert decision.signals["jsd"].tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("fallback", "expected"), [("surest", "...x"), ("first", ".x.."), (1, ".x.."), (2, "..x."), (9, "...x")]
)
@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize(
    "kind",
    [Threshold, KLASS, LESS, partial(EntropyBound, bound=0.01)],
    ids=["threshold", "klass", "less", "entropy-bound"],
)
def test_the_fallback_is_a_choice(kind, blockwise, fallback, expected):
    now = sure(0.99, 0.4, 0.5, 0.6)
    obs = observe(now, active=".mmm", quota=2, blockwise=blockwise)
    assert committed(kind(fallback=fallback).decide(obs)) == expected


@pytest.mark.parametrize("sampler", [Threshold(fallback="first"), EntropyBound(fallback="first")], ids=str)
def test_no_fallback_where_something_passes(sampler):
    decision = sampler.decide(observe(sure(0.4, 0.5, 0.999)))
    assert committed(decision).endswith("x")
    assert not forced(decision)


@pytest.mark.parametrize("kind", sorted({type(sampler) for sampler in SAMPLERS.values()}, key=str))
def test_every_sampler_says_what_it_does(kind):
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # what a dataclass without a sentence says
