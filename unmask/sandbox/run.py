"""Send jobs to helper interpreters and read their verdicts. Runs no untrusted code itself."""

from __future__ import annotations

import json
import os
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from unmask.errors import whole
from unmask.sandbox.jobs import Job, Limits, Outcome

INSIDE = Path(__file__).with_name("inside")
SECONDS, LENGTH, REPLY = struct.Struct("<d"), struct.Struct("<I"), struct.Struct("<?iI")
LONGEST_REASON = 300
DEFAULT = Limits()
PASSED = Outcome(True, "passed")


@dataclass(frozen=True, slots=True)
class Reply:
    """A helper's report on one job."""

    timed_out: bool  # by the wall clock
    status: int  # as from `os.waitstatus_to_exitcode`: below 0 a signal
    output: bytes  # from the job's channel, whoever wrote it


def run_jobs(jobs: Sequence[Job], limits: Limits = DEFAULT, *, workers: int = 1) -> list[Outcome]:
    """Run jobs, `workers` at a time; return their outcomes in order."""
    whole("workers", workers, 1)
    if not jobs:
        return []
    waiting = iter(list(enumerate(jobs)))  # threads may share a list's iterator
    outcomes: list[Outcome | None] = [None] * len(jobs)

    def work() -> None:
        with _start_helper() as helper:
            for index, job in waiting:
                outcomes[index] = _judge(helper, job, limits)

    with ThreadPoolExecutor(min(workers, len(jobs))) as pool:
        try:
            for future in [pool.submit(work) for _ in range(min(workers, len(jobs)))]:
                future.result()
        finally:
            deque(waiting, 0)  # start no new job after an interrupt
    return [outcome for outcome in outcomes if outcome is not None]


@lru_cache(maxsize=1)
def isolation() -> tuple[str, ...]:
    """Return the protections of this machine, as observed by a job."""
    with _start_helper() as helper:
        reply = helper.run({"probe": True, **asdict(DEFAULT)}, 30.0)
    return tuple(json.loads(reply.output))


def _judge(helper: _Helper, job: Job, limits: Limits) -> Outcome:
    token = secrets.token_hex(16)
    message = {"program": job.program, "checks": list(job.checks), "token": token, **asdict(limits)}
    reply = helper.run(message, limits.seconds)
    return PASSED if reply.output == token.encode() else Outcome(False, _reason(reply, limits))


def _reason(reply: Reply, limits: Limits) -> str:
    """Say why a job failed; its own words come last because they may say anything."""
    if reply.timed_out:
        return f"timed out after {limits.seconds:g} s"
    if reply.status == -signal.SIGXCPU:
        return f"timed out after {limits.cpu_seconds} s of processor time"
    if reply.output == b"memory":
        return f"memory: more than {limits.memory_bytes >> 20} MiB"
    if reply.output:
        words = reply.output.decode(errors="replace")[:LONGEST_REASON]
        return "failed: " + "".join(letter if letter.isprintable() else " " for letter in words)
    if reply.status < 0:
        return f"killed by {signal.Signals(-reply.status).name}"
    return "exited before the tests ended"


class _Helper:
    """A helper interpreter that runs one job at a time."""

    def __init__(self, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-S", str(INSIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},  # set order is the same in every run
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches only us
        )

    def run(self, message: dict[str, object], seconds: float) -> Reply:
        """Run one job and return the reply."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        body = json.dumps(message).encode()
        try:
            _write_all(self.process.stdin, SECONDS.pack(seconds) + LENGTH.pack(len(body)) + body)
            timed_out, status, length = REPLY.unpack(_read_all(self.process.stdout, REPLY.size))
            return Reply(timed_out, status, _read_all(self.process.stdout, length))
        except (BrokenPipeError, EOFError):
            raise RuntimeError(
                f"the sandbox helper ended with code {self.process.wait()} while a job ran; "
                "see its standard error; the usual cause is too little memory"
            ) from None

    def close(self) -> None:
        """End the helper; it kills its job when its input closes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def _start_helper() -> Iterator[_Helper]:
    if os.name != "posix":
        raise RuntimeError(
            f"the sandbox needs fork and rlimits, which {sys.platform} lacks; use Linux or macOS"
        )
    with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder:
        helper = _Helper(folder)
        try:
            yield helper
        finally:
            helper.close()


def _write_all(stream: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _read_all(stream: IO[bytes], length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = stream.read(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data
