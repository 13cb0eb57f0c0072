"""The code of runs on a cluster, with a stand-in for Ray; test_cluster.py has the real one."""

from __future__ import annotations

import json
import pickle
from functools import partial

import pytest
from typer.testing import CliRunner

from tests.evals import fake_ray
from tests.evals.conftest import WEAK
from unmask import LESS
from unmask.cli.app import app
from unmask.evals.cluster import connect
from unmask.evals.records import Record, read_lines
from unmask.experiments.lab import Lab, LabSettings
from unmask.models import load
from unmask.sandbox import Unprotected
from unmask.sandbox.isolation import UNSAFE

FEW = ("--limit", "4", "-n", "8", "--batch-size", "2", "--device", "cpu")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setenv(UNSAFE, "")  # restores the variable that --unsafe-code sets
    return fake_ray.make(monkeypatch)


def test_a_cluster_writes_the_records_of_one_process_and_extends_them(ray, checkpoint, tmp_path):
    arguments = ("eval", "mini-gsm8k", "-m", checkpoint, *FEW, "--out")
    assert call(*arguments, tmp_path / "single").exit_code == 0
    result = call(*arguments, tmp_path / "ray", "--ray", "local", "--workers", 1)
    assert result.exit_code == 0, result.stderr
    single, ours = (tmp_path / name / "mini-gsm8k" / "records.jsonl" for name in ("single", "ray"))
    assert ours.read_bytes() == single.read_bytes()
    result = call(*arguments, tmp_path / "ray", "--ray", "local", "--limit", 7)
    assert result.exit_code == 0, result.stderr
    assert len(read_lines(ours, Record)) == 7
    assert ours.read_bytes().startswith(single.read_bytes())


def test_workers_say_and_store_what_isolates_programs(ray, checkpoint, tmp_path):
    result = call("eval", "mini-humaneval", "-m", checkpoint, *FEW, "--out", tmp_path, "--ray", "local")
    assert result.exit_code == 0, result.stderr
    manifest = json.loads((tmp_path / "mini-humaneval" / "run.json").read_text())
    assert manifest["environment"]["isolation"] in result.stderr


def test_a_worker_without_isolation_refuses_programs_unless_the_user_allows_them(
    ray, weak, checkpoint, tmp_path
):
    arguments = ("eval", "mini-humaneval", "-m", checkpoint, *FEW, "--out", tmp_path, "--ray", "local")
    refused = call(*arguments)
    assert (refused.exit_code, ray.variables) == (2, {})
    assert "--unsafe-code" in refused.stderr
    allowed = call(*arguments, "--unsafe-code")
    assert allowed.exit_code == 0, allowed.stderr
    assert ray.variables == {UNSAFE: "1"}


def test_the_refusal_of_a_worker_reaches_us():
    error = pickle.loads(pickle.dumps(Unprotected(WEAK)))
    assert error.isolation == WEAK
    assert str(error) == str(Unprotected(WEAK))


def test_reproduce_estimates_for_the_workers_of_a_cluster(ray, checkpoint, tmp_path):
    few = ("--tasks", "mini-gsm8k", "--limit", 1, "--device", "cpu", "--out", tmp_path / "out", "--dry-run")
    result = call("reproduce", "policy", "-m", checkpoint, *few, "--ray", "local", "--workers", 2)
    assert result.exit_code == 0, result.stderr
    assert "on 2 workers for 4 runs" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_lab_makes_the_same_runs_on_a_cluster(ray, checkpoint, tmp_path):
    outcomes = []
    with connect("local", partial(load, checkpoint, device="cpu")) as cluster:
        for name, decode in (("here", None), ("there", lambda model, *given: cluster.decode(*given))):
            settings = {"models": (str(checkpoint),), "tasks": ("mini-gsm8k",), "limit": 3, "device": "cpu"}
            lab = Lab(LabSettings(out=tmp_path / name, **settings), decode=decode)
            outcomes.append(lab.result(lab.run(str(checkpoint), "mini-gsm8k", LESS(), length=8)))
    assert outcomes[0].records == outcomes[1].records
