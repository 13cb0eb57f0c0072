"""`unmask bench` from the command line."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from tests.conftest import GOLDENS
from tests.test_layers import PACKAGE, imports
from unmask.bench.device import full_size_device
from unmask.cli.app import app


@pytest.mark.slow
def test_a_small_run_succeeds_and_writes_its_results(tmp_path):
    words = ["bench", "gpu", "--small", "--families", "dream", "--ways", "eager", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "| B = 1: step of `less`, no cache, mean of a run |" in result.output
    assert list(json.loads((tmp_path / "gpu.json").read_text())["families"]) == ["dream"]


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("batches", "1,3", "1, 2; got 3"),
        ("caches", "dul", "none, prefix, dual"),
        ("samplers", "lss", "base, klass, less"),
    ],
)
def test_unknown_parts_of_a_measurement_are_refused(option, value, known):
    result = CliRunner().invoke(app, ["bench", "gpu", "--small", f"--{option}", value])
    assert result.exit_code == 2
    assert f"{option} must be some of {known}" in " ".join(result.stderr.split())


def test_running_out_of_time_is_reported_and_fails():
    result = CliRunner().invoke(app, ["bench", "gpu", "--small", "--families", "dream", "--minutes", "0"])
    assert result.exit_code == 1
    assert "the time given was over" in result.output


def test_an_unknown_benchmark_is_refused_and_all_are_listed_in_the_help():
    result = CliRunner().invoke(app, ["bench", "tpu"])
    assert result.exit_code == 2
    assert "'gpu'" in result.output
    listed = CliRunner().invoke(app, ["bench", "--help"]).output
    assert all(name in listed for name in ("gpu", "growth", "same", "cpu", "samplers"))


def test_an_option_of_another_benchmark_is_refused():
    result = CliRunner().invoke(app, ["bench", "samplers", "--out", "folder"])
    assert result.exit_code == 2
    assert "--out" in result.output


@pytest.mark.parametrize("what", ["gpu", "growth"])
@pytest.mark.parametrize("device", [(), ("--device", "auto"), ("--device", "cuda")])
def test_without_a_gpu_a_run_at_full_size_is_refused_and_a_small_one_offered(what, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["bench", what, *device])
    assert result.exit_code == 2
    assert "there is no GPU on this machine; add --small" in result.stderr


def test_a_full_size_run_takes_the_cpu_only_if_it_is_named():
    assert full_size_device("cpu", small=False) == torch.device("cpu")
    assert full_size_device(None, small=True) == torch.device("cpu")


@pytest.mark.parametrize(
    ("words", "file", "row"),
    [
        (("growth", "--family", "llada", "--ways", "eager"), "growth.json", "| LLaDA-8B | 1 | 24 |"),
        (("same", "--model", str(GOLDENS / "llada_tiny"), "--ways", "dual"), "same.json", "float32, dual |"),
        (("cpu",), "cpu.json", "| `less` |"),
    ],
)
def test_every_other_benchmark_succeeds_and_writes_its_results(tmp_path, words, file, row):
    result = CliRunner().invoke(app, ["bench", *words, "--small", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert row in result.output
    written = json.loads((tmp_path / file).read_text())
    assert written["command"].startswith(f"unmask bench {words[0]}")
    assert written["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda:99"), "'cuda:99'"),
        (("--device", "gpu"), "'gpu'"),
        (("--repeat", "0"), "--repeat"),
    ],
)
def test_wrong_options_of_the_sampler_benchmark_are_refused(arguments, words):
    result = CliRunner().invoke(app, ["bench", "samplers", *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_the_package_imports_nothing_from_the_benchmarks_of_a_clone():
    for path in PACKAGE.rglob("*.py"):
        assert not any(name.split(".")[0] == "benchmarks" for name in imports(path.read_text())), path
