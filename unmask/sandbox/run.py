"""Hands jobs to helper interpreters and reads their verdicts. Runs no foreign code itself."""

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
    """What a helper saw of one job."""

    late: bool  # the wall clock ran out
    status: int  # as `os.waitstatus_to_exitcode` gives it: below 0 a signal
    said: bytes  # what came through the job's channel, from whomever


def run_jobs(jobs: Sequence[Job], limits: Limits = DEFAULT, *, workers: int = 1) -> list[Outcome]:
    """The outcome of each job, in their order; `workers` jobs run at a time."""
    whole("workers", workers, 1)
    if not jobs:
        return []
    waiting = iter(list(enumerate(jobs)))  # a list's iterator may be shared by threads
    outcomes: list[Outcome | None] = [None] * len(jobs)

    def work() -> None:
        with _helper() as ask:
            for place, job in waiting:
                outcomes[place] = _judged(ask, job, limits)

    with ThreadPoolExecutor(min(workers, len(jobs))) as pool:
        try:
            for done in [pool.submit(work) for _ in range(min(workers, len(jobs)))]:
                done.result()
        finally:
            deque(waiting, 0)  # after an interrupt no new job begins
    return [outcome for outcome in outcomes if outcome is not None]


@lru_cache(maxsize=1)
def isolation() -> tuple[str, ...]:
    """The protections that hold on this machine, as a job itself saw them take effect."""
    with _helper() as ask:
        reply = ask.about({"probe": True, **asdict(DEFAULT)}, 30.0)
    return tuple(json.loads(reply.said))


def _judged(ask: _Helper, job: Job, limits: Limits) -> Outcome:
    token = secrets.token_hex(16)
    message = {"program": job.program, "checks": list(job.checks), "token": token, **asdict(limits)}
    reply = ask.about(message, limits.seconds)
    return PASSED if reply.said == token.encode() else Outcome(False, _reason(reply, limits))


def _reason(reply: Reply, limits: Limits) -> str:
    """Why a job failed; the words of the job itself come last, because they may be anything."""
    if reply.late:
        return f"timed out after {limits.seconds:g} s"
    if reply.status == -signal.SIGXCPU:
        return f"timed out after {limits.cpu_seconds} s of processor time"
    if reply.said == b"memory":
        return f"memory: more than {limits.memory_bytes >> 20} MiB"
    if reply.said:
        words = reply.said.decode(errors="replace")[:LONGEST_REASON]
        return "failed: " + "".join(letter if letter.isprintable() else " " for letter in words)
    if reply.status < 0:
        return f"killed by {signal.Signals(-reply.status).name}"
    return "exited before the tests ended"


class _Helper:
    """One helper interpreter, which is asked about one job at a time."""

    def __init__(self, folder: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-S", str(INSIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},  # a program that depends on the order of a set always does the same
            bufsize=0,
            start_new_session=True,  # an interrupt at the keyboard is ours to handle
        )

    def about(self, message: dict[str, object], seconds: float) -> Reply:
        """What became of one job."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        body = json.dumps(message).encode()
        try:
            _write_all(self.process.stdin, SECONDS.pack(seconds) + LENGTH.pack(len(body)) + body)
            late, status, length = REPLY.unpack(_read_all(self.process.stdout, REPLY.size))
            return Reply(late, status, _read_all(self.process.stdout, length))
        except (BrokenPipeError, EOFError):
            raise RuntimeError(
                f"the sandbox helper ended with code {self.process.wait()} while a job ran; "
                "its words are on the standard error, and a machine short of memory is the usual cause"
            ) from None

    def close(self) -> None:
        """Ends the helper; it kills what it runs when its input ends."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def _helper() -> Iterator[_Helper]:
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
