from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experiments.conftest import outcome
from unmask.experiments import methods, stats
from unmask.experiments.calibrate import Target
from unmask.experiments.calibrate import choose as calibrated
from unmask.experiments.grid import Cells
from unmask.experiments.leave_one_out import choose
from unmask.experiments.paper import paper_name, paper_tables, reported
from unmask.experiments.pareto import frontier
from unmask.experiments.report import Table, above, below
from unmask.experiments.side_by_side import side_by_side

PRINTED_MEANS = {  # the paper's Mean column
    ("Dream-7B", "Base"): (63.30, 256.0),
    ("Dream-7B", "Prophet"): (53.20, 92.9),
    ("Dream-7B", "KLASS"): (63.50, 85.4),
    ("Dream-7B", "LESS"): (65.18, 64.3),
    ("LLaDA-8B", "Base"): (56.58, 256.0),
    ("LLaDA-8B", "Prophet"): (44.55, 128.1),
    ("LLaDA-8B", "KLASS"): (57.02, 86.8),
    ("LLaDA-8B", "LESS"): (57.41, 76.5),
    ("LLaDA-1.5-8B", "Base"): (57.84, 256.0),
    ("LLaDA-1.5-8B", "Prophet"): (44.87, 126.0),
    ("LLaDA-1.5-8B", "KLASS"): (57.36, 91.6),
    ("LLaDA-1.5-8B", "LESS"): (57.85, 73.2),
}
RIGHTS = st.lists(st.booleans(), min_size=1, max_size=40)


@pytest.mark.parametrize(("model", "method"), PRINTED_MEANS)
def test_our_macro_mean_of_the_papers_rows_is_the_papers_own_mean(model, method):
    row = paper_tables()["headline"][model][method]
    accuracy = stats.macro({task: cell[0] for task, cell in row.items()})
    steps = stats.macro({task: cell[1] for task, cell in row.items()})
    assert (accuracy, steps) == (
        pytest.approx(PRINTED_MEANS[model, method][0], abs=0.011),
        pytest.approx(PRINTED_MEANS[model, method][1], abs=0.051),
    )


def test_every_row_of_an_ablation_has_the_four_tasks_of_the_paper():
    for name in ("single-signal", "drop-one", "policy", "budget", "selection"):
        for rows in paper_tables()[name].values():
            assert all(list(row) == ["gsm8k", "math", "humaneval", "mbpp"] for row in rows.values())


def test_a_model_that_the_paper_did_not_use_has_no_reported_rows():
    assert reported("headline", "mini-llada") == {}
    assert reported("headline", "GSAI-ML/LLaDA-8B-Instruct@main")["LESS"]["gsm8k"] == [75.82, 82.0]


@pytest.mark.parametrize(
    "tasks", [methods.PAPER_TASKS, ("mini-gsm8k", "mini-mmlu", "mini-mbpp", "mini-math")]
)
def test_categories_weigh_the_same_and_tasks_share_their_category(tasks):
    shares = methods.weights(tasks)
    assert sum(shares.values()) == pytest.approx(1)
    groups = {methods.category(task) for task in tasks}
    for group in groups:
        assert sum(w for t, w in shares.items() if methods.category(t) == group) == pytest.approx(
            1 / len(groups)
        )


@given(RIGHTS, st.data())
def test_intervals_hold_their_value_and_stay_within_bounds(rights, data):
    other = data.draw(st.lists(st.booleans(), min_size=len(rights), max_size=len(rights)))
    first, second = {"mini-math": outcome(rights)}, {"mini-math": outcome(other)}
    gap, share = stats.difference(first, second), stats.accuracy(first)
    assert -100 <= gap.low <= gap.value <= gap.high <= 100
    assert 0 <= share.low <= share.value <= share.high <= 100
    assert gap.value == pytest.approx(100 * (sum(other) - sum(rights)) / len(rights))
    back = stats.difference(second, first)
    assert (back.value, back.low, back.high) == pytest.approx((-gap.value, -gap.high, -gap.low))


@given(RIGHTS, RIGHTS)
def test_the_interval_of_a_mean_over_tasks_holds_it_and_is_narrower_than_that_of_one_task(one, other):
    alone = [stats.accuracy({"mini-math": outcome(rights)}) for rights in (one, other)]
    both = stats.accuracy({"mini-math": outcome(one), "mini-mbpp": outcome(other)})
    assert 0 <= both.low <= both.value + 1e-9
    assert both.value - 1e-9 <= both.high <= 100 + 1e-9
    assert both.high - both.low <= max(part.high - part.low for part in alone) + 1e-9


def test_equal_verdicts_on_few_samples_prove_nothing():
    same = {"mini-math": outcome([True, False, True])}
    assert stats.difference(same, same).low < -10
    many = {"mini-math": outcome([True] * 2000)}
    assert stats.difference(many, many).low > -0.2


def test_a_difference_pairs_by_sample_not_by_place():
    first = outcome([True, False])
    turned = type(first)(
        records=first.records[::-1], timings=(), configuration=first.configuration, environment={}
    )
    assert stats.flips(first.records, turned.records) == (0, 0, 2)


def test_few_numbers_have_no_interval_and_decide_nothing():
    few = stats.mean([1.0, 1.0, 1.0])
    assert few.shown() == "1.0 [?]"
    assert above("it is", few).verdict == "undecided"
    assert stats.mean([1.0] * 20).low == 1.0


def test_a_ratio_of_means_is_not_a_mean_of_ratios():
    assert stats.ratio([10.0, 10.0], [1.0, 9.0]).value == pytest.approx(2.0)


def test_a_share_pairs_samples_so_that_equal_runs_have_no_doubt():
    many = outcome([True] * 20, steps=7)
    slow = replace(many, records=tuple(replace(r, steps=5 + n) for n, r in enumerate(many.records)))
    twice = replace(slow, records=tuple(replace(r, steps=2 * r.steps) for r in slow.records[::-1]))
    same = stats.share({"mini-math": slow}, {"mini-math": twice}, "steps")
    assert (same.value, same.low, same.high) == pytest.approx((200, 200, 200))
    assert stats.saved({"mini-math": twice}, {"mini-math": slow}, "steps").value == pytest.approx(50)
    wide = stats.share({"mini-math": many}, {"mini-math": slow}, "steps")
    assert wide.low < 100 * 14.5 / 7 < wide.high


def test_a_share_of_few_samples_has_no_interval():
    few = {"mini-math": outcome([True] * 3)}
    assert stats.share(few, few, "forwards").shown() == "100.0 [?]"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 1, "holds"), (-1, -0.1, "does not hold"), (-1, 1, "undecided"), (0, 0, "undecided")],
)
def test_a_finding_needs_its_whole_interval_on_one_side(low, high, expected):
    estimate = stats.Estimate((low + high) / 2, low, high)
    assert above("it is", estimate).verdict == expected
    mirrored = stats.Estimate(-estimate.value, -high, -low)
    assert below("it is", mirrored).verdict == expected


PLACES = st.dictionaries(
    st.text("abcdef", min_size=1), st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1
)


@given(PLACES)
def test_nothing_beats_the_frontier_and_everything_else_is_beaten(points):
    kept = frontier(points)
    for name, (cost, quality) in points.items():
        beaten = any(points[k][0] <= cost and points[k][1] >= quality and k != name for k in kept)
        assert beaten or name in kept
    costs = [points[name] for name in kept]
    assert costs == sorted(costs)
    assert len({quality for _, quality in costs}) == len(costs)


def test_leave_one_out_takes_the_fewest_steps_within_a_point_of_the_best():
    setting = ("m", "mini-math")
    found = {
        (0.75, 0.04): {setting: outcome([True] * 99 + [False], steps=9)},
        (0.90, 0.04): {setting: outcome([True] * 100, steps=20)},
        (0.50, 0.04): {setting: outcome([True] * 90 + [False] * 10, steps=2)},
    }
    assert choose(found, [setting]) == (0.75, 0.04)


def rows(**accuracies: tuple[int, int]) -> dict[str, dict[str, object]]:
    """Outcomes over 1,000 samples: how many are right, and the steps."""
    return {
        name: {"mini-math": outcome([True] * right + [False] * (1000 - right), steps)}
        for name, (right, steps) in accuracies.items()
    }


def test_calibration_takes_the_cheapest_setting_that_surely_keeps_to_the_target():
    found = rows(Base=(900, 128), fast=(850, 5), good=(899, 20), slow=(900, 40))
    assert calibrated(found, Target(max_loss=1.0, max_steps=None)) == "good"


def test_calibration_under_a_bound_on_steps_takes_the_most_accurate_setting():
    found = rows(Base=(900, 128), fast=(850, 5), good=(899, 20), slow=(950, 40))
    assert calibrated(found, Target(max_loss=1.0, max_steps=30)) == "good"


def test_calibration_without_a_sure_setting_takes_the_one_that_misses_least():
    found = rows(Base=(900, 128), worse=(700, 5), bad=(800, 9))
    assert calibrated(found, Target(max_loss=1.0, max_steps=None)) == "bad"
    finding = Target(1.0, None).finding("it", found["Base"], found["bad"])
    assert finding.verdict == "does not hold"


def test_a_table_escapes_what_markdown_would_read():
    table = Table("t", "T", ("a", "b"), (("x|y", "1\n2"),))
    assert table.markdown() == "| a | b |\n| --- | --- |\n| x\\|y | 1 2 |\n"
    assert table.csv() == 'a,b\nx|y,"1\n2"\n'


def headline_cells(model: str, tasks: tuple[str, ...] = methods.PAPER_TASKS) -> Cells:
    rights = {"Base": 10, "LESS": 30, "LESS, released code": 20, "Threshold 0.9": 15}
    return Cells(
        model,
        {
            label: {task: outcome([True] * right + [False] * (40 - right), steps=right) for task in tasks}
            for label, right in rights.items()
        },
    )


def test_the_paper_the_released_code_and_ours_have_a_column_each_and_unknown_cells_are_empty():
    [shown] = side_by_side(
        headline_cells("GSAI-ML/LLaDA-8B-Instruct"), "headline", rows={"Base": "Base", "LESS": "LESS"}
    )
    cells = {(method, task): row for method, task, *row in shown.rows}
    assert [name.partition(",")[0] for name in shown.header[2:5]] == ["paper", "released code", "ours"]
    assert cells["LESS", "GSM8K"] == ["75.8 / 82.0", "50.0 / 20.0", "75.0 / 30.0", "-0.8"]
    assert cells["LESS", "mean"][0] == "57.4 / 76.5"
    assert cells["Base", "MATH"] == ["31.4 / 256.0", "", "25.0 / 10.0", "-6.4"]
    assert cells["Threshold 0.9", "MMLU"] == ["", "", "37.5 / 15.0", ""]
    assert len(cells) == 3 * 8
    assert "paper_accuracy" in shown.csv().splitlines()[0]


def test_without_all_tasks_of_the_paper_there_is_no_mean():
    [shown] = side_by_side(
        headline_cells("GSAI-ML/LLaDA-8B-Instruct", ("gsm8k", "mmlu")), "headline", rows={"LESS": "LESS"}
    )
    assert {row[1] for row in shown.rows} == {"GSM8K", "MMLU"}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Dream-org/Dream-v0-Instruct-7B@main", "Dream-7B"),
        ("/models/LLaDA-8B-Instruct/", "LLaDA-8B"),
        ("./LLaDA-1.5", "LLaDA-1.5-8B"),
        ("someone/LLaDA-8B-Instruct", None),  # another repository holds other weights
        ("/models/my-llada", None),
        ("mini-llada", None),
    ],
)
def test_a_folder_counts_as_a_model_of_the_paper_by_its_name(model, name):
    assert paper_name(model) == name
