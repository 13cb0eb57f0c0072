"""A run that is killed again and again ends with the records of one that nobody disturbed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from unmask.evals.records import Timing, read_lines

ROOT = Path(__file__).parents[2]


def killing(*arguments: object) -> tuple[int, float]:
    command = [sys.executable, "-m", "tests.evals.killing", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    killed, seconds = done.stdout.split()
    return int(killed), float(seconds)


def test_ten_kills_at_random_moments_change_nothing(checkpoint, tmp_path):
    _, seconds = killing(checkpoint, tmp_path / "whole")
    rng = random.Random(seconds)  # other moments every time
    moments = [rng.uniform(0.01, 0.14) * seconds for _ in range(10)]
    killed, _ = killing(checkpoint, tmp_path / "killed", *moments)
    whole, resumed = ((tmp_path / name / "records.jsonl").read_bytes() for name in ("whole", "killed"))
    assert resumed == whole
    assert whole.count(b"\n") == 20
    assert killed >= 8  # the others came when the run was done
    timings = read_lines(tmp_path / "killed" / "timings.jsonl", Timing)
    assert [timing.batch for timing in timings] == list(range(20))
