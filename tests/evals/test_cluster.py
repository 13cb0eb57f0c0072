"""Runs on a Ray cluster of two workers on this machine; a run takes a while to start, hence slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import descendants
from unmask.evals.records import Timing, read_lines

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TASK = ("mini-gsm8k", "--limit", "96", "-n", "32", "--batch-size", "2", "--device", "cpu")


def start(checkpoint: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "unmask", "eval", *TASK, "-m", str(checkpoint), "--out", str(out), *more]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=one_thread, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr


def replicas(driver: int) -> list[int]:
    """The busy workers of a local cluster, found by their title among the driver's descendants."""
    return sorted(descendants(driver, b"ray::MapWorker"))


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_worker_is_replaced_and_the_records_are_those_of_one_process(checkpoint, tmp_path):
    with start(checkpoint, tmp_path / "single") as single:
        finish(single)
    file = tmp_path / "ray" / "mini-gsm8k" / "records.jsonl"
    with start(checkpoint, tmp_path / "ray", "--ray", "local", "--workers", "2") as driver:
        deadline = time.monotonic() + 120
        while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        before = replicas(driver.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        after = set(before)
        while driver.poll() is None and not after - set(before):
            time.sleep(0.05)
            after |= set(replicas(driver.pid))
        finish(driver)
    assert after - set(before), "nobody took the place of the killed worker"
    whole = (tmp_path / "single" / "mini-gsm8k" / "records.jsonl").read_bytes()
    assert file.read_bytes() == whole
    assert whole.count(b"\n") == 96
    timings = read_lines(file.with_name("timings.jsonl"), Timing)
    assert [timing.batch for timing in timings] == list(range(48))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ray", "local", "--workers", "99999"), "workers must be at most"),
        (("--ray", "127.0.0.1:9"), "there is no Ray cluster at '127.0.0.1:9'"),
    ],
)
def test_a_cluster_that_is_not_there_is_told(checkpoint, tmp_path, arguments, words):
    process = start(checkpoint, tmp_path, *arguments)
    try:
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 2
    assert words in stderr.splitlines()[-1]
