"""The estimate that comes before the runs."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tests.experiments.conftest import outcome
from unmask import LESS, Base
from unmask.cli.app import app
from unmask.experiments import get_experiment
from unmask.experiments.experiment import Experiment
from unmask.experiments.forecast import forecast
from unmask.experiments.lab import Lab
from unmask.experiments.report import Report, Table
from unmask.experiments.stats import accuracy, steps
from unmask.models import load


def experiment(*samplers, length=8) -> Experiment:
    def runs(lab):
        [model], task = lab.models, "mini-gsm8k"
        return {(model, str(n), task): lab.run(model, task, s, length=length) for n, s in enumerate(samplers)}

    return Experiment(name="x", title="", about="", runs=runs, build=lambda lab, cells: Report())


def test_an_estimate_multiplies_texts_forwards_and_the_time_of_a_forward(make_lab):
    cost = forecast(make_lab(), [experiment(Base(), LESS())])
    assert (cost.runs, cost.samplers, cost.samples, cost.stored) == (2, 2, 4, 0)
    assert 2 * 8 < cost.forwards < 4 * 8  # Base takes a forward per token, LESS fewer
    [timed] = cost.timed
    assert (timed.rows, timed.device) == (2, "cpu")
    per_forward = cost.seconds / cost.forwards
    assert timed.seconds / 8 < per_forward < timed.seconds * 8
    doubled = forecast(make_lab(), [experiment(Base(), length=16)])
    assert doubled.forwards == pytest.approx(2 * 16)


def test_runs_that_are_kept_cost_nothing_and_those_of_fewer_samples_tell_their_forwards(make_lab):
    lab, one = make_lab(), experiment(LESS())
    [outcome] = one.make(lab)[1].values()
    assert forecast(make_lab(), [one]).runs == 0
    more = forecast(make_lab(limit=6), [one])
    assert (more.runs, more.stored, more.samples) == (1, 1, 3)
    assert more.forwards == pytest.approx(3 * outcome.forwards)


def test_a_dry_run_prints_an_estimate_and_makes_nothing(checkpoint, tmp_path):
    few = ("--tasks", "mini-gsm8k", "--limit", "1", "--device", "cpu", "--out", str(tmp_path / "out"))
    result = CliRunner().invoke(app, ["reproduce", "policy", "-m", str(checkpoint), *few, "--dry-run"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("estimate: about ")
    assert "for 4 runs" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_missing_interval_is_explained_where_it_is_shown(make_lab):
    def report(count):
        runs = {"mini-gsm8k": outcome([True] * count)}
        cells = tuple(number(runs).shown() for number in (accuracy, steps))
        return Report(tables=(Table("t", "", ("accuracy", "steps"), (cells,)),))

    def notes(count):
        one = experiment()
        made = Experiment(name="x", title="", about="", runs=one.runs, build=lambda lab, cells: report(count))
        return made.make(make_lab())[0].notes

    [note] = notes(2)
    assert note.startswith("[?]")
    assert "10 samples" in note
    assert notes(20) == ()


def test_an_estimate_says_that_some_runs_are_chosen_later(make_lab):
    chooses = replace(experiment(Base()), then=lambda lab, cells: {})
    cost = forecast(make_lab(limit=2), [get_experiment("headline"), chooses])
    assert cost.runs > 8
    assert cost.chosen_later == 1


def test_an_estimate_leaves_the_first_model_in_memory_and_a_resumed_run_checks_weights_once(
    make_lab, checkpoint, tmp_path
):
    other = shutil.copytree(checkpoint, tmp_path / "other")
    settings = replace(make_lab(limit=2).settings, models=(str(checkpoint), str(other)))
    loaded = []

    def count(lab, name):
        loaded.append(name)
        return load(name, device="cpu")

    def runs(lab):
        return {
            (name, "x", "mini-gsm8k"): lab.run(name, "mini-gsm8k", Base(), length=8) for name in lab.models
        }

    both = Experiment(name="x", title="", about="", runs=runs, build=lambda lab, cells: Report())
    lab = Lab(settings, load=count)
    forecast(lab, [both])
    both.make(lab)
    assert loaded == [str(other), str(checkpoint), str(other)]
    loaded.clear()
    both.make(Lab(settings, load=count))
    assert loaded == [str(checkpoint), str(other)]


def test_new_tokens_may_be_fewer_than_the_tasks(make_lab):
    lab = make_lab(max_new_tokens=8)
    assert {run.config.max_new_tokens for run in get_experiment("headline").runs(lab).values()} == {8}
    assert {run.config.steps for run in get_experiment("budget").runs(lab).values()} == {2, 4, None, 16}
