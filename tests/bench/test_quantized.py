"""`unmask bench quantized` in miniature: it pairs answers and names formats that lose too many."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.experiments.conftest import outcome
from unmask.bench.quantized import ALL, PLAIN, difference, over_samplers, run_quantized, table, wrong


def content(points: float, dtype: str = "int8", sampler: str = "less") -> dict:
    row = {"accuracy": 50.0, "questions": 70, "forwards": 9.0, "lost": 2, "gained": 1}
    gap = {"points": points, "low": points - 1, "high": points + 1}
    machine = dict.fromkeys(("torch", "cuda", "triton")) | {"device": "cpu", "date": "today"}
    return {
        "command": "",
        "machine": machine,
        "tasks": ["mini-mmlu"],
        "results": {"mini-llada": {sampler: {PLAIN: row, dtype: row | gap}}},
    }


@pytest.mark.parametrize(
    ("dtype", "points", "right"), [("int8", -0.4, True), ("int8", -0.6, False), ("int4", -0.6, True)]
)
def test_a_format_that_loses_too_many_points_is_named(dtype, points, right):
    sentences = list(wrong(content(points, dtype)))
    assert (sentences == []) == right
    assert all(dtype in sentence for sentence in sentences)


@pytest.mark.parametrize(("points", "right"), [(0.1, True), (-0.1, False)])
def test_the_interval_over_all_samplers_must_begin_above_minus_one(points, right):
    assert (list(wrong(content(points, sampler=ALL))) == []) == right
    assert list(wrong(content(points))) == []


def test_the_table_shows_the_paired_difference():
    assert "| mini-llada | `less` | int8 | 50.00 | -0.40 [-1.40, +0.60] | 2 / 1 of 70 | 9.0 |" in table(
        content(-0.4)
    )


@pytest.mark.parametrize("options", [{"dtypes": ["int2"]}, {"samplers": ["greedy"]}])
def test_wrong_settings_are_refused(options):
    with pytest.raises(ValueError, match="must be some of"):
        run_quantized(small=True, **options)


@pytest.mark.slow
def test_a_small_run_compares_a_format_with_plain_weights(tmp_path):
    made = run_quantized(
        models=["mini-llada"],
        dtypes=["int8"],
        samplers=["first-mask"],
        small=True,
        out=tmp_path,
        log=lambda _: None,
    )
    found = made["results"]["mini-llada"]["first-mask"]
    assert list(found) == [PLAIN, "int8"]
    assert found["int8"]["low"] <= found["int8"]["points"] <= found["int8"]["high"]
    assert json.loads((tmp_path / "quantized.json").read_text()) == made


def test_the_difference_over_all_samplers_is_the_mean_of_theirs():
    right, wrong_one = [True] * 40, [False] + [True] * 39
    plain = [{"mini-mmlu": outcome(right), "mini-gsm8k": outcome([True, False])} for _ in range(2)]
    narrow = [{"mini-mmlu": outcome(wrong_one), "mini-gsm8k": outcome([True, True])}, plain[1]]
    found = over_samplers({PLAIN: plain, "int8": narrow, "int4": narrow[:1]}, 2)
    assert found.keys() == {PLAIN, "int8"}  # int4 lacks a sampler
    single = [difference([one], [two])["points"] for one, two in zip(plain, narrow, strict=True)]
    assert found["int8"]["points"] == pytest.approx(sum(single) / 2)
    assert (found["int8"]["lost"], found["int8"]["gained"], found["int8"]["questions"]) == (1, 1, 84)
    assert found["int8"]["low"] < found["int8"]["points"] < found["int8"]["high"]


def test_an_interval_has_a_width_where_nothing_changed():
    runs = [{"mini-mmlu": outcome([True] * 50)}] * 4
    found = over_samplers({PLAIN: runs, "fp8": runs}, 4)["fp8"]
    assert found["points"] == 0.0
    assert found["low"] < -1.0 < 1.0 < found["high"]


def test_samples_are_paired_by_name_whatever_their_order():
    first, second = outcome([True, False, True]), outcome([False, True, True])
    turned = replace(second, records=second.records[::-1])
    assert difference([{"mini-mmlu": first}], [{"mini-mmlu": second}]) == difference(
        [{"mini-mmlu": first}], [{"mini-mmlu": turned}]
    )
