"""`unmask bench quantized` in miniature: it pairs answers and names formats that lose too many."""

from __future__ import annotations

import json

import pytest

from unmask.bench.quantized import ALL, PLAIN, run_quantized, table, wrong


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


@pytest.mark.slow
def test_the_difference_over_all_samplers_is_the_mean_of_theirs(tmp_path):
    made = run_quantized(
        models=["mini-llada"],
        dtypes=["int8"],
        samplers=["less", "first-mask"],
        items=10,
        small=True,
        out=tmp_path,
        log=lambda _: None,
    )
    less, first_mask, both = (made["results"]["mini-llada"][name] for name in ("less", "first-mask", ALL))
    assert both["int8"]["points"] == pytest.approx(
        (less["int8"]["points"] + first_mask["int8"]["points"]) / 2
    )
    assert both["int8"]["low"] <= both["int8"]["points"] <= both["int8"]["high"]
    assert both["int8"]["questions"] == 40
