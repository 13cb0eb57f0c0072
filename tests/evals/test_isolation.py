"""What isolates generated programs is printed and stored; without it they do not run."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.evals.conftest import WEAK
from unmask import GenerationConfig
from unmask.cli.app import app
from unmask.evals import evaluate, get_task, manifest
from unmask.evals.records import Record, to_line
from unmask.sandbox import Isolation, isolation, run
from unmask.sandbox.isolation import UNSAFE

FEW = ("--limit", "2", "-n", "8")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def stored(tmp_path):
    sample = get_task("mini-humaneval").load(None)[0]
    record = Record(
        id=sample.id,
        prompt="",
        text=sample.gold,
        extracted=None,
        correct=False,
        also={},
        steps=1,
        forwards=1,
        forced_share=0.0,
        leftovers=0,
        tokens=1,
        prompt_tokens=1,
        finish="stop",
    )
    path = tmp_path / "records.jsonl"
    path.write_bytes(to_line(record))
    return path


def test_eval_prints_and_stores_the_isolation(checkpoint, tmp_path):
    result = call("eval", "mini-humaneval", "-m", checkpoint, *FEW, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    kept = json.loads((tmp_path / "mini-humaneval" / "run.json").read_text())
    assert kept["environment"]["isolation"] == str(isolation())
    assert str(isolation()) in result.stderr


def test_score_prints_and_stores_the_isolation(stored, tmp_path):
    result = call("score", stored, "--task", "mini-humaneval", "--out", tmp_path / "new.jsonl")
    assert result.exit_code == 0, result.stderr
    assert str(isolation()) in result.stderr
    assert "0.00% -> 100.00%" in result.stdout
    kept = json.loads((tmp_path / "new.jsonl.run.json").read_text())
    assert kept["environment"]["isolation"] == str(isolation())
    assert kept["task"]["name"] == "mini-humaneval"


@pytest.mark.parametrize("command", ["eval", "score", "reproduce"])
def test_programs_are_refused_without_isolation_unless_the_user_allows_them(
    command, weak, checkpoint, stored, tmp_path
):
    arguments = {
        "eval": ("eval", "mini-humaneval", "-m", checkpoint, *FEW, "--out", tmp_path / "runs"),
        "score": ("score", stored, "--task", "mini-humaneval"),
        "reproduce": (
            *("reproduce", "policy", "-m", checkpoint, "--tasks", "mini-humaneval", "--limit", "1"),
            *("--out", tmp_path / "runs"),
        ),
    }[command]
    refused = call(*arguments)
    assert refused.exit_code == 2
    assert "network" in refused.stderr
    assert "--unsafe-code" in refused.stderr
    allowed = call(*arguments, "--unsafe-code")
    assert allowed.exit_code == 0, allowed.stderr
    assert str(WEAK) in allowed.stderr


def test_other_tasks_need_no_isolation(weak, checkpoint, tmp_path):
    assert call("eval", "mini-gsm8k", "-m", checkpoint, *FEW, "--out", tmp_path).exit_code == 0


def test_a_run_that_is_resumed_with_less_isolation_says_so(model, tmp_path, weak, monkeypatch):
    monkeypatch.setenv(UNSAFE, "1")
    short = GenerationConfig(max_new_tokens=8)
    task = get_task("mini-humaneval")
    evaluate(model, task, config=short, limit=2, out=tmp_path, batch_size=1)
    strong = Isolation(layers=("rlimits",), denied=("network",), allowed=())
    monkeypatch.setattr(run._Helper, "probe", lambda helper: strong)
    manifest._isolation.cache_clear()
    for _ in range(2):
        evaluate(model, task, config=short, limit=2, out=tmp_path, batch_size=1)
        kept = json.loads((tmp_path / "run.json").read_text())["environment"]["isolation"]
        assert kept.startswith(str(WEAK))
        assert kept.count(str(strong)) == 1
