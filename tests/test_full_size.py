"""The full-size benchmark in miniature on the CPU: every stage, and what a failing stage leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import full_size, full_size_stage
from unmask.models import build

PARAMETERS = {"llada": 8_015_581_184, "dream": 7_615_616_512}  # of the published checkpoints


def in_this_process(call: list[str], **_: object) -> None:
    full_size_stage.main(call[-1])


def run(tmp_path: Path, *words: str) -> dict:
    """The results file of a tiny run; the work folder must be left empty."""
    work, out = tmp_path / "work", tmp_path / "out"
    full_size.main(["--tiny", "--device", "cpu", "--work", str(work), "--out", str(out), *words])
    assert list(work.iterdir()) == []
    [file] = out.iterdir()
    return json.loads(file.read_text())


def test_every_stage_of_both_families_leaves_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(full_size.subprocess, "run", in_this_process)
    content = run(tmp_path)
    for family in content["families"].values():
        assert family["problems"] == []
        assert family["write"]["shards"] > 1
        assert family["speed"]["decode_less"]["masks_left"] == 0
        assert family["speed"]["decode_base"]["forwards"] == full_size.TINY_SIZES["base_steps"]
        assert [row["batch"] for row in family["speed"]["forward"]] == [1, 1, 2, 2]
        assert family["float32"]["agreement"]["top1_equal"] > 0.9
        assert 0 < family["int8"]["agreement"]["mean_abs_error"] < 0.1
    printed = capsys.readouterr().out
    assert "| | LLaDA-8B | Dream-7B |" in printed
    assert f"| {full_size.MISSING} |" not in printed
    assert str(tmp_path) not in json.dumps(content)


def test_a_stage_runs_in_a_process_of_its_own_and_a_failure_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = run(tmp_path, "--families", "dream", "--device", "nowhere")
    [problem] = content["families"]["dream"]["problems"]
    assert problem.startswith("write: write: FieldError: device")
    assert f"- Dream-7B {problem}" in capsys.readouterr().out


def test_a_killed_process_keeps_what_it_wrote_and_does_not_stop_the_next_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_one(call: list[str], **_: object) -> None:
        in_this_process(call)
        if json.loads(call[-1])["stage"] == "load":
            raise subprocess.TimeoutExpired(call, 180)

    monkeypatch.setattr(full_size.subprocess, "run", kill_one)
    family = run(tmp_path, "--families", "llada")["families"]["llada"]
    assert family["problems"] == ["load: stopped after 180 s"]
    assert "load" in family["cold"]
    assert "agreement" in family["int8"]


@pytest.mark.parametrize(
    ("code", "stderr", "sentence"),
    [
        (-9, "", "ended with code -9: no message"),
        (1, "Trace\nOops: x\n", "ended with code 1: Oops: x"),
    ],
)
def test_a_broken_process_is_told_by_its_last_words(
    monkeypatch: pytest.MonkeyPatch, code: int, stderr: str, sentence: str
) -> None:
    def broken(call: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(code, call, stderr=stderr)

    monkeypatch.setattr(full_size.subprocess, "run", broken)
    assert full_size.call_stage({"stage": "load"}, timeout=1) == [sentence]


def test_stages_that_do_not_fit_the_time_are_left_out(tmp_path: Path) -> None:
    family = run(tmp_path, "--families", "llada", "--minutes", "0")["families"]["llada"]
    assert family["problems"] == ["write: not run, the time given was over"]


def test_the_parent_stays_small() -> None:
    code = "import sys, benchmarks.full_size; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=full_size.ROOT, check=True)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_configs_have_the_published_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = build(full_size.CONFIGS[name])
    assert sum(weight.numel() for weight in model.parameters()) == PARAMETERS[name]
