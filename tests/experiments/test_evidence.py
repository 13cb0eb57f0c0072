"""Evidence: tuned samplers on a grid of models, AUP, corrected findings, and bars without labels."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.experiments.conftest import outcome
from tests.raises import raises_field
from unmask.cli.app import app
from unmask.evals.agreement import Agreement
from unmask.experiments import evidence, stats
from unmask.experiments.evidence import METHODS, declare, make_experiment
from unmask.experiments.evidence_report import build
from unmask.experiments.frontier_study import Method
from unmask.experiments.grid import Cells
from unmask.experiments.judged import Judged
from unmask.experiments.lab import Lab, LabSettings, Missing
from unmask.experiments.ranking import agreement, spearman
from unmask.experiments.report import Report, corrected, write
from unmask.experiments.runs import Outcome
from unmask.experiments.stats import Estimate
from unmask.training.grid import FILE, Trained

ROOT = Path(__file__).parents[2]
SHORT = {"max_new_tokens": 8}
BARS = ("min_confidence", (0.9, 0.98))
SMALL = (
    Method(label="Base", preset="base", changes=SHORT, sweep=("steps", (4, 8))),
    Method(label="LESS", preset="less", changes=SHORT, sweep=BARS),
    Method(label="LESS, confidence only", preset="less-confidence-only", changes=SHORT, sweep=BARS),
    Method(label="First mask", preset="first-mask", changes=SHORT, sweep=BARS),
)


def trained(family: str, size: str, seed: int) -> Trained:
    return Trained(
        name=f"{family}-{size}-{seed}-0123",
        family=family,
        size=size,
        seed=seed,
        parameters=4_000_000 if size == "4m" else 15_000_000,
        steps=10,
        seconds=1.0,
        tokens_per_second=1.0,
        validation={"0.15": 0.1, "1": 2.0},
    )


@pytest.fixture
def grid(checkpoint: Path, tmp_path: Path) -> Path:
    """A grid of two copies of a tiny model."""
    folder = tmp_path / "grid"
    models = [trained("llada", "4m", 1), trained("llada", "15m", 1)]
    for model in models:
        shutil.copytree(checkpoint, folder / model.name)
    (folder / FILE).write_text(json.dumps([asdict(model) for model in models]))
    return folder


@pytest.mark.slow
def test_a_grid_is_judged_and_rebuilt_from_records_without_its_weights(grid, tmp_path):
    settings = LabSettings(
        models=(),
        out=tmp_path / "out",
        tasks=("mini-gsm8k", "mini-recall"),
        limit=4,
        device="cpu",
        grid=grid,
    )
    report, outcomes = make_experiment(SMALL).make(Lab(settings))
    rows = {table.name: len(table.rows) for table in report.tables}
    assert (rows["evidence-models"], rows["evidence"]) == (2, 2 * len(SMALL))
    assert {len(one.records) for one in outcomes.values()} == {2}
    first = write(report, tmp_path / "first", tmp_path / "first")
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(grid / FILE, bare)
    again, same = make_experiment(SMALL).make(Lab(replace(settings, grid=bare, records_only=True)))
    assert same == outcomes
    assert again.findings == report.findings
    second = write(again, tmp_path / "second", tmp_path / "second")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_the_command_takes_a_grid(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "EXPERIMENT", make_experiment(SMALL[2:4] + SMALL[:2]))
    arguments = ["reproduce", "evidence", "--grid", str(grid), "--tasks", "mini-recall", "--limit", "1"]
    done = CliRunner().invoke(
        app, [*arguments, "-m", "llada-4m-1-0123", "--device", "cpu", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "reports" / "evidence.png").is_file()


def test_without_a_grid_the_experiment_says_so(make_lab):
    with pytest.raises(Missing, match="--grid"):
        make_experiment(SMALL).make(make_lab())


def test_every_sampler_has_the_same_number_of_settings_and_steps_grow_with_the_canvas(grid, tmp_path):
    assert {len(method.swept) for method in METHODS} == {4}
    lab = Lab(LabSettings(models=(), out=tmp_path, grid=grid))
    runs = declare(lab)
    model = lab.models[0]
    assert len(lab.tasks(model)) == 14
    assert runs[model, "Base, steps = 128", "mini-report"].config.steps == 320
    assert runs[model, "Base, steps = 128", "mini-sudoku"].config.steps == 128


# --- statistics


def test_a_task_with_long_answers_gets_a_quarter_of_the_items(grid, tmp_path):
    lab = Lab(LabSettings(models=(), out=tmp_path, grid=grid, limit=530))
    assert [len(lab.samples(f"mini-{task}")) for task in ("gsm8k", "recall", "report")] == [40, 40, 10]


def test_holm_corrects_for_the_number_of_tests():
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.5]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_a_claim_is_decided_alone_but_not_among_many():
    claim = ("it is better", Estimate(1.0, 0.1, 1.9))
    assert corrected([claim])[0].verdict == "holds"
    assert corrected([claim] * 10)[0].verdict == "undecided"
    sure = ("it is worse", Estimate(-5.0, -5.5, -4.5))
    assert corrected([sure, *[claim] * 10])[0].verdict == "does not hold"
    assert stats.p_value(Estimate(1.0, -stats.inf, stats.inf)) == 1.0


@given(value=st.floats(-5, 5), down=st.floats(0.01, 9), up=st.floats(0.01, 9), bar=st.floats(-5, 5))
def test_a_p_value_is_small_just_when_the_interval_leaves_the_bar_out(value, down, up, bar):
    low, high = value - down, value + up
    assume(min(abs(low - bar), abs(high - bar)) > 1e-6)
    assert (stats.p_value(Estimate(value, low, high), bar) < 0.05) == (not low <= bar <= high)


def places(pairs: list[tuple[float, float]]) -> stats.Curve:
    pace, right = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    return stats.Curve(pace, right, pace[:, None], right[:, None])


def test_aup_is_the_area_under_the_best_accuracy_at_so_many_tokens_per_forward_or_more():
    curves = {
        "steady": places([(2.0, 0.90), (4.0, 0.88)]),
        "reckless": places([(1.0, 0.90), (9.0, 0.50)]),  # the fast setting is too far below the best
        "dominated": places([(2.0, 0.87), (4.0, 0.88)]),  # its slower setting adds nothing
    }
    areas = {name: area for name, (area, _) in stats.aup(curves).items()}
    assert areas == pytest.approx({"steady": 2 * 0.90 + 2 * 0.88, "reckless": 0.90, "dominated": 4 * 0.88})


def test_ranks_agree_from_minus_one_to_one():
    draws = torch.tensor([1.0, 1.0, 3.0])  # in the last resample, the second and the third change places
    low, middle, high = (
        (1.0, draws * 1),
        (2.0, draws.new_tensor([2, 2, 4])),
        (3.0, draws.new_tensor([3, 3, 3.5])),
    )
    assert agreement([([low, middle, high], [low, middle, high])]) == Estimate(1, 1, 1)
    assert agreement([([low, middle, high], [high, middle, low])]).value == -1
    fixed = [(float(place), torch.full((3,), float(place))) for place in range(3)]
    assert agreement([([low, middle, high], fixed)]).low < 1
    tied = [(0.0, draws * 0), (0.0, draws * 0), (1.0, draws * 0 + 1)]
    assert agreement([(tied, tied)]) == Estimate(1, 1, 1)  # equal values are no disagreement
    assert agreement([(tied[:2], tied[1:])]).value == 0
    rising, p = spearman(list(range(8)), [x * x for x in range(8)])
    assert rising == pytest.approx(1)
    assert p < 0.01
    assert spearman([1, 2, 3, 4], [1, 1, 1, 1])[0] == 0


# --- findings on made-up records


def made_up(first_mask: float, threshold: float, *, seeds: int = 2, forwards: int = 8) -> list[Judged]:
    """Models on which two samplers have these accuracies, in 10 forwards and in so many."""

    def rows(right: float, steps: int) -> dict[str, Outcome]:
        return {"mini-sudoku": outcome([place < 400 * right for place in range(400)], steps)}

    study = (
        Method(label="First mask", preset="first-mask", sweep=BARS),
        Method(label="Base", preset="base", sweep=("steps", (8, 16))),
    )
    cells = {label: rows(first_mask - 0.02 * place, 10) for place, label in enumerate(study[0].swept)}
    cells |= {label: rows(threshold, forwards) for label in study[1].swept}
    bars = [Agreement(bar, changed, 100, 0.5, 0.0) for bar, changed in ((0.9, 9), (0.98, 1))]
    return [Judged(trained("llada", "4m", seed), Cells("m", cells), study, bars) for seed in range(seeds)]


def whole_report(judged: list[Judged]) -> Report:
    lab = SimpleNamespace(grid={f"m{place}": one.trained for place, one in enumerate(judged)})
    all_cells = [Cells(f"m{place}", one.cells.rows) for place, one in enumerate(judged)]
    bars = {cells.model: judged[0].bars for cells in all_cells}
    return build(lab, judged[0].study, all_cells, bars)  # type: ignore[arg-type]


def report_of(judged: list[Judged]) -> dict[str, str]:
    report = whole_report(judged)
    assert "The rule recommends" in report.notes[0]
    return {finding.statement: finding.verdict for finding in report.findings} | {"rule": report.notes[0]}


def test_a_cheaper_and_better_rival_takes_the_sampler_from_the_frontier():
    lost = report_of(made_up(0.80, 0.95))
    kept = report_of(made_up(0.95, 0.80))
    close = report_of(made_up(0.90, 0.905))
    statement = "llada-4m-0: no sampler of at most its forwards is more accurate than First mask"
    assert [found[statement] for found in (lost, kept, close)] == ["does not hold", "holds", "undecided"]
    assert lost["llada: Base is more accurate than First mask on mini-sudoku"] == "holds"
    assert "llada: Base is more accurate than First mask on mini-sudoku" not in kept


@pytest.mark.parametrize("missing", ["First mask", "Base", "LESS", "LESS, confidence only"])
@pytest.mark.parametrize("place", [0, 3])
def test_a_sampler_that_is_missing_on_a_model_leaves_the_report_whole(missing, place):
    study = tuple(replace(method, changes={}) for method in SMALL)
    judged = []
    for number, (family, size) in enumerate(product(("llada", "dream"), ("4m", "15m"))):
        labels = [
            label for method in study for label in method.swept if (number, method.label) != (place, missing)
        ]
        cells = {
            label: {"mini-sudoku": outcome([True, False] * 30, 8), "mini-mmlu": outcome([True] * 60, 8)}
            for label in labels
        }
        judged.append(Judged(trained(family, size, 1), Cells("m", cells), study, []))
    report = whole_report(judged)
    for picture in report.pictures:
        picture.draw()
    found = {finding.statement: finding for finding in report.findings}
    name = judged[place].name
    statement = f"{name}: no sampler of at most its forwards is more accurate than First mask"
    if missing == "First mask":
        assert statement not in found
    else:
        assert found[statement].verdict == "undecided"
        assert "2 of 3 rivals ran" in found[statement].numbers


def test_the_main_table_has_a_row_for_every_task_and_their_mean():
    tables = {table.name: table for table in whole_report(made_up(0.75, 0.5, seeds=3)).tables}
    [title] = [table.title for name, table in tables.items() if name.startswith("evidence-main")]
    main = tables["evidence-main-llada-4m"]
    assert "3 seeds" in title
    assert main.header == ("task", "First mask", "Base")
    assert main.rows == (("mini-sudoku", "75.0 / 10.0", "50.0 / 8.0"), ("mean", "75.0 / 10.0", "50.0 / 8.0"))


def test_the_rule_recommends_a_sampler_that_nothing_cheaper_beats():
    assert "recommends Base" in report_of(made_up(0.80, 0.95))["rule"]
    assert "recommends First mask" in report_of(made_up(0.95, 0.80))["rule"]  # Base is cheap but worse


def test_the_bar_without_labels_is_compared_with_the_labelled_one():
    [one, _] = made_up(0.95, 0.80)
    assert all(setting.endswith("0.9") for setting in one.chosen["First mask"])
    found = report_of([one, one])
    # without labels, 0.98 is chosen, which costs two points here
    statement = "llada-4m-0: the bar without labels is at most 1 point below the one with labels"
    assert found[statement] in ("does not hold", "undecided")


def test_a_setting_is_chosen_by_the_items_that_it_does_not_judge():
    study = (Method(label="First mask", preset="first-mask", sweep=BARS),)
    low, high = study[0].swept
    even = [place % 2 == 0 for place in range(100, 200)]  # ids are sorted, so all have three digits
    cells = {
        low: {"mini-sudoku": numbered(even, first=100)},  # right on one half of the items
        high: {"mini-sudoku": numbered([not right for right in even], first=100)},  # on the other half
    }
    [one] = [Judged(trained("llada", "4m", 1), Cells("m", cells), study, [])]
    assert set(one.chosen["First mask"]) == {low, high}
    assert one.tuned["First mask"]["mini-sudoku"].accuracy == 0  # each setting fails where it was not chosen


def numbered(rights: list[bool], first: int) -> Outcome:
    """Records with ids of equal length."""
    made = outcome(rights, 8)
    ids = (f"item/{number}" for number in count(first))
    return replace(
        made, records=tuple(replace(one, id=id) for one, id in zip(made.records, ids, strict=False))
    )


def test_samplers_that_lack_records_are_left_out_of_a_model(grid, tmp_path):
    settings = LabSettings(
        models=(), out=tmp_path / "out", tasks=("mini-recall",), limit=2, device="cpu", grid=grid
    )
    make_experiment(SMALL[2:]).make(Lab(replace(settings, models=("llada-4m-1-0123",))))
    make_experiment(SMALL[3:]).make(Lab(replace(settings, models=("llada-15m-1-0123",))))
    report, _ = make_experiment(SMALL[2:]).make(Lab(replace(settings, records_only=True)))
    tuned = next(table for table in report.tables if table.name == "evidence")
    assert [row[:2] for row in tuned.rows] == [
        ("llada-4m-1", "LESS, confidence only"),
        ("llada-4m-1", "First mask"),
        ("llada-15m-1", "First mask"),
    ]
    with pytest.raises(Missing, match="--limit"):
        make_experiment(SMALL[:1]).make(Lab(replace(settings, records_only=True)))


def test_a_lead_that_may_be_chance_leaves_the_recommendation_in_place():
    assert "stays. The rule recommends First mask" in report_of(made_up(0.90, 0.905, forwards=10))["rule"]


def test_a_grid_without_weights_says_how_to_use_its_records(grid, tmp_path):
    for folder in grid.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    settings = LabSettings(models=(), out=tmp_path, tasks=("mini-recall",), limit=2, device="cpu", grid=grid)
    with pytest.raises(Missing, match="--records-only"):
        make_experiment(SMALL[3:]).make(Lab(settings))


def test_a_grid_that_is_not_there_is_refused(tmp_path):
    with raises_field("grid", str(tmp_path)):
        _ = Lab(LabSettings(models=(), out=tmp_path, grid=tmp_path)).models
    (tmp_path / FILE).write_text("[]")
    with raises_field("grid", str(tmp_path)):
        _ = Lab(LabSettings(models=(), out=tmp_path, grid=tmp_path)).models


def ranked(rights: list[float]) -> list[Judged]:
    """Two seeds on which samplers have these accuracies, the better the faster."""
    study = tuple(Method(label=f"S{place}", preset="base", sweep=BARS) for place in range(len(rights)))
    cells = {
        label: {"mini-sudoku": outcome([item < 400 * right for item in range(400)], steps=20 - 3 * place)}
        for place, (method, right) in enumerate(zip(study, rights, strict=True))
        for label in method.swept
    }
    return [Judged(trained("llada", "4m", seed), Cells("m", cells), study, []) for seed in range(2)]


def test_samplers_are_ranked_where_there_are_five_and_the_models_solve_anything():
    assert "rank alike" not in " ".join(report_of(made_up(0.9, 0.5)))
    assert "rank alike" not in " ".join(report_of(ranked([0.0] * 5)))
    found = report_of(ranked([0.90, 0.91, 0.92, 0.93, 0.94]))
    assert found["llada: 5 samplers rank alike in other seeds of 4m"] == "holds"


@pytest.mark.slow
def test_the_page_of_the_grid_is_rebuilt_bit_for_bit_from_its_records(tmp_path):
    records = shutil.copytree(ROOT / "results" / "evidence", tmp_path / "evidence")
    page = tmp_path / "docs" / "evidence.md"
    arguments = ["reproduce", "evidence", "--grid", str(records), "--out", str(records), "--page", str(page)]
    done = CliRunner().invoke(app, [*arguments, "--records-only", "--limit", "700"])
    assert done.exit_code == 0, done.output
    docs = ROOT / "docs"
    assert page.read_bytes() == (docs / "evidence.md").read_bytes()
    for figure in sorted((docs / "evidence").iterdir()):
        assert (tmp_path / "docs" / "evidence" / figure.name).read_bytes() == figure.read_bytes(), figure.name
