"""`unmask bench` from the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.bench.test_reference import SAMPLER
from tests.conftest import GOLDENS
from unmask.cli.app import app


def test_a_small_run_ends_well_and_leaves_its_results(tmp_path):
    words = ["bench", "gpu", "--small", "--families", "dream", "--ways", "eager", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "| B = 1: step of `less`, no cache |" in result.output
    assert list(json.loads((tmp_path / "gpu.json").read_text())["families"]) == ["dream"]


def test_time_that_is_over_is_a_failure_and_said():
    result = CliRunner().invoke(app, ["bench", "gpu", "--small", "--families", "dream", "--minutes", "0"])
    assert result.exit_code == 1
    assert "the time given was over" in result.output


def test_an_unknown_benchmark_is_refused_in_one_sentence():
    result = CliRunner().invoke(app, ["bench", "tpu"])
    assert result.exit_code == 2
    for name in ("gpu", "growth", "same", "cpu", "samplers"):
        assert name in result.output


@pytest.mark.parametrize(
    ("words", "file", "row"),
    [
        (("growth", "--family", "llada", "--ways", "eager"), "growth.json", "| LLaDA-8B | 1 | 24 |"),
        (("same", "--model", str(GOLDENS / "llada_tiny"), "--ways", "dual"), "same.json", "float32, dual |"),
        (("cpu",), "cpu.json", "| `less` |"),
    ],
)
def test_every_other_measurement_ends_well_and_leaves_its_results(tmp_path, words, file, row):
    result = CliRunner().invoke(app, ["bench", *words, "--small", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert row in result.output
    written = json.loads((tmp_path / file).read_text())
    assert written["command"].startswith(f"unmask bench {words[0]}")
    assert written["problems"] == []


def test_a_reference_is_timed_beside_ours(tmp_path):
    file = tmp_path / "other.py"
    file.write_text(SAMPLER)
    words = ["gpu", "--small", "--families", "dream", "--ways", "eager", "--reference", f"{file}:fill"]
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == 0, result.output
    assert "| Dream-7B: other.py:fill |" in result.output
    assert "--reference other.py:fill --small" in result.output
