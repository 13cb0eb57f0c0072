"""`unmask bench` from the command line."""

from __future__ import annotations

import json

from typer.testing import CliRunner

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
    result = CliRunner().invoke(app, ["bench", "cpu"])
    assert result.exit_code == 2
    assert "gpu" in result.output
    assert "samplers" in result.output
