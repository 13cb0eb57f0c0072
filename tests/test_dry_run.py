"""The dry run of the paper's main table on random weights, in miniature on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import dry_run
from unmask.evals import get_task
from unmask.evals.run import load_samples


def test_the_repeated_rows_load_as_whole_sets_with_ids_of_their_own(tmp_path: Path) -> None:
    dry_run.write_data(tmp_path)
    for task in ("math500", "humaneval", "mbpp-sanitized"):  # their rows name their ids
        samples = load_samples(get_task(task), tmp_path)
        assert len({sample.id for sample in samples}) == len(samples)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_dry_run_is_interrupted_resumes_and_writes_tables_and_times(tmp_path: Path, family: str) -> None:
    small = ["--tiny", "--device", "cpu", "--no-compile", "--items", "1", "--new-tokens", "4"]
    few = ["--family", family, "--tasks", "gsm8k,mbpp-sanitized", "--interrupt-after", "2"]
    out = tmp_path / "out"
    dry_run.main(["--work", str(tmp_path / "work"), "--out", str(out), *small, *few])
    times = json.loads((out / dry_run.REPORT).read_text())
    assert times["runs"] == 20
    assert 2 <= times["runs_before_interrupt"] == 20 - times["runs_made_now"] < 20
    assert times["estimate_seconds"] > 0
    table = (out / "reports" / f"headline-paper-{dry_run.NAMES[family]}.md").read_text()
    assert "| paper | released code, run here | ours, run here |" in table
