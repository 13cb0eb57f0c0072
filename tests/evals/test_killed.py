"""A run that is killed again and again ends with the records of one that nobody disturbed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from unmask.evals.records import Timing, read_lines

ROOT = Path(__file__).parents[2]


def test_ten_kills_at_random_moments_change_nothing(checkpoint, tmp_path):
    moments = [random.uniform(0.01, 0.12) for _ in range(10)]  # other ones every time
    arguments = checkpoint, tmp_path / "whole", tmp_path / "killed", *moments
    command = [sys.executable, "-m", "tests.evals.killing", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    whole, resumed = ((tmp_path / name / "records.jsonl").read_bytes() for name in ("whole", "killed"))
    assert resumed == whole
    assert whole.count(b"\n") == 20
    assert int(done.stdout) >= 8  # the others came when the run was done
    timings = read_lines(tmp_path / "killed" / "timings.jsonl", Timing)
    assert [timing.batch for timing in timings] == list(range(20))
