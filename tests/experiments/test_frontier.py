from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from matplotlib.text import Text
from typer.testing import CliRunner

from tests.experiments.conftest import outcome
from unmask import LESS
from unmask.cli.app import app
from unmask.evals import get_task
from unmask.experiments import drawing, frontier, get_experiment
from unmask.experiments.frontier import choose, make_experiment
from unmask.experiments.frontier_study import STUDY, Claim, Method, Study
from unmask.experiments.lab import Lab, LabSettings, Missing
from unmask.experiments.page import write_page
from unmask.experiments.report import Report, write
from unmask.samplers import SAMPLERS
from unmask.training.tasks import TEST_TASKS, is_test, test_items

BARS = ("min_confidence", (0.5, 0.9))
SHORT = {"max_new_tokens": 8}
SMALL = Study(
    methods=(
        Method(label="Base", preset="base", changes=SHORT, sweep=("steps", (4, 8))),
        Method(label="LESS", preset="less", changes=SHORT, sweep=BARS),
        Method(label="Threshold 0.9", preset="threshold", changes=SHORT, sweep=BARS, end_rule=True),
    ),
    recommended="Threshold 0.9",
    held_out=("LESS",),
    with_fallback=("LESS",),
    lossless=(
        (
            Method(label="Again", preset="less", changes=SHORT),
            Method(label="LESS", preset="less", changes=SHORT),
        ),
    ),
    claims=(Claim(label="LESS", gains=True, speedup=2.0), Claim(label="LESS", category="code")),
    end_rule={"end_tokens": "suppress"},
    first_mask={"patience": 1},
)


@pytest.mark.parametrize(
    "name",
    [  # the same drawing as for mini-humaneval, and it takes longest
        pytest.param(name, marks=pytest.mark.slow) if name == "mini-mbpp" else name for name in TEST_TASKS
    ],
)
def test_the_items_of_a_task_are_of_the_test_split_and_no_problem_is_in_two_sets(name):
    sets = {protocol: get_task(name, protocol).load(None) for protocol in ("mini", "dev", "held-out")}
    assert {protocol: len(samples) for protocol, samples in sets.items()} == {
        "mini": 500,
        "dev": 150,
        "held-out": 500,
    }
    keys = {protocol: [sample.meta["key"] for sample in samples] for protocol, samples in sets.items()}
    assert sum(map(len, keys.values())) == len(set().union(*keys.values()))
    assert all(map(is_test, set().union(*keys.values())))  # no training problem
    assert keys["mini"] == [item.key for item in test_items(name)]
    ids = [sample.id for samples in sets.values() for sample in samples]
    assert len(ids) == len(set(ids))


def test_a_dev_answer_is_scored_like_a_test_answer():
    task = get_task("mini-gsm8k", "dev")
    samples = task.load(None)[:3]
    assert [one.correct for one in task.score(samples, [sample.gold for sample in samples])] == [True] * 3


def test_runs_on_other_items_are_kept_apart(make_lab):
    lab = make_lab()
    runs = [
        lab.run(lab.models[0], "mini-gsm8k", LESS(), length=16, protocol=protocol)
        for protocol in (None, "dev", "held-out")
    ]
    outcomes = lab.results(runs)
    assert [{record.id for record in one.records} for one in outcomes.values()] == [
        {f"mini-gsm8k/{name}{place}" for place in range(2)} for name in ("", "dev/", "held-out/")
    ]
    again = make_lab(records_only=True)
    assert again.results(runs) == outcomes


@pytest.mark.slow
def test_the_study_is_built_and_a_second_run_decodes_nothing(make_lab, tmp_path):
    experiment = make_experiment(SMALL)
    report, outcomes = experiment.make(make_lab())
    main, sweep, worth, held_out, lossless = report.tables
    # both settings of every sampler, the end rule where it is not built in, the tuned value of each sweep
    assert len(main.rows) == 3 + 2 + 3
    assert [row[0] for row in sweep.rows] == ["Base", "LESS", "Threshold 0.9"]
    assert all(row[3] for row in sweep.rows)  # one value is chosen
    assert [row[0] for row in worth.rows] == [
        f"LESS{add}" for add in ("", " + end rule", " + first mask", " + both")
    ]
    assert [row[:2] for row in held_out.rows] == [("llada", "LESS")]
    assert lossless.rows[0][3] == "4 of 4"
    assert len(report.findings) == 3
    again, same = make_experiment(SMALL).make(make_lab(records_only=True))
    assert same == outcomes
    files = [
        write(one, tmp_path / name, tmp_path / name) for one, name in ((report, "first"), (again, "second"))
    ]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


@pytest.mark.slow
def test_a_killed_study_resumes(make_lab):
    started = []

    def stop(done, total, run, state):
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_experiment(SMALL).make(make_lab(), stop)
    make_experiment(SMALL).make(make_lab(), lambda done, total, run, state: started.append(done))
    assert min(started) == 5


def test_the_parts_come_in_order_for_both_shipped_models(tmp_path):
    lab = Lab(LabSettings(models=("mini-llada", "mini-dream"), out=tmp_path, limit=7))
    order = [label.partition("/")[0] for _, label, _ in frontier.declare(SMALL, lab)]
    assert list(dict.fromkeys(order)) == ["authors", "held-out", "end rule", "lossless", "sweep"]
    assert order == sorted(order, key=list(dict.fromkeys(order)).index)


def test_a_sampler_that_does_not_exist_stops_the_study_before_its_first_run(make_lab):
    study = replace(SMALL, methods=(*SMALL.methods, Method(label="New", preset="not-there")))
    with pytest.raises(Missing, match="not-there"):
        make_experiment(study).make(make_lab())


def test_the_best_setting_has_the_most_points_and_then_the_fewest_forwards():
    rows = {
        "cheap": {"mini-math": outcome([True, False], steps=2)},
        "good": {"mini-math": outcome([True, True], steps=9)},
        "better": {"mini-math": outcome([True, True], steps=5)},
    }
    assert choose(rows, list(rows)) == "better"
    assert choose(rows, ["cheap"]) == "cheap"


def test_every_sweep_that_can_be_built_here_has_five_to_seven_values_and_changes_its_sampler(tmp_path):
    lab = Lab(LabSettings(models=("mini-llada",), out=tmp_path))
    for method in STUDY.methods:
        if method.sweep is not None and method.preset in SAMPLERS and "min_gap" not in method.changes:
            runs = {method.run(lab, "mini-llada", "mini-math", changes) for changes in method.swept.values()}
            assert 5 <= len(runs) <= 7


def test_names_in_a_figure_do_not_overlap():
    places = {
        f"sampler number {place}": (8 + 0.2 * (place % 5), 90 + 0.3 * (place // 5)) for place in range(25)
    }
    figure, [axes] = drawing.panels(1, width=9, height=6)
    axes.plot(*zip(*places.values(), strict=True), "o")
    drawing.name_points(figure, axes, places)
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the line to its point
    assert len(boxes) == len(places)
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def test_the_sentences_of_a_section_stand_in_its_section(make_lab, tmp_path):
    lab = make_lab()
    lab.settings.out.mkdir(exist_ok=True)
    (lab.settings.out / "frontier.md").write_text("Water is wet.\n", encoding="utf-8")
    experiments = [get_experiment(name) for name in ("policy", "frontier", "headline")]
    write_page(tmp_path / "page.md", lab, dict.fromkeys(experiments, Report()), [])
    sections = (tmp_path / "page.md").read_text(encoding="utf-8").split("\n## ")
    [section] = [one for one in sections if "Water is wet." in one]
    assert section.startswith(experiments[1].title)


def test_the_command_writes_tables_and_figure_and_packs_the_records(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(frontier, "EXPERIMENT", make_experiment(SMALL))
    arguments = ["reproduce", "frontier", "-m", str(checkpoint), "--tasks", "mini-mmlu", "--limit", "1"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(tmp_path), "--pack"])
    assert done.exit_code == 0, done.output
    names = {file.name for file in (tmp_path / "reports").iterdir()}
    assert {"frontier.png", "frontier-llada.md", "frontier-held-out.csv"} <= names
    assert (tmp_path / "records.tar.xz").is_file()
