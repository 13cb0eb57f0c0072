"""Send jobs to helper interpreters and read their verdicts. Runs no untrusted code itself."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from unmask.errors import whole
from unmask.sandbox import bubblewrap
from unmask.sandbox.isolation import Isolation, Unprotected, unsafe_code
from unmask.sandbox.jobs import Job, Limits, Outcome

INSIDE = Path(__file__).with_name("inside")
HEADER, LENGTH, REPLY = struct.Struct("<dQ"), struct.Struct("<I"), struct.Struct("<BiI")
ENDED, TIMED_OUT, FILLED = range(3)  # how a job ended
PROBE_SECONDS = 30.0
LONGEST_REASON = 300
DEFAULT = Limits()
PASSED = Outcome(True, "passed")


@dataclass(frozen=True, slots=True)
class Reply:
    """A helper's report on one job."""

    end: int
    status: int  # exit code of the checks' process; below 0, the signal that killed it
    verdict: dict[str, Any]  # from the checks' process; empty if it died


def run_jobs(jobs: Sequence[Job], limits: Limits = DEFAULT, *, workers: int = 1) -> list[Outcome]:
    """Run jobs, `workers` at a time; return their outcomes in order.

    Raise Unprotected if this machine cannot isolate them, unless the user allows it (`unsafe_code`).
    """
    whole("workers", workers, 1)
    if not jobs:
        return []
    waiting = iter(list(enumerate(jobs)))  # threads may share an iterator over a list
    outcomes: list[Outcome | None] = [None] * len(jobs)

    def work() -> None:
        with _start_helper(limits) as helper:
            _refuse_weak(helper.probe())
            for index, job in waiting:
                outcomes[index] = helper.judge(job, limits)

    with ThreadPoolExecutor(min(workers, len(jobs))) as pool:
        try:
            for future in [pool.submit(work) for _ in range(min(workers, len(jobs)))]:
                future.result()
        finally:
            deque(waiting, 0)  # start no new job after an interrupt
    return [outcome for outcome in outcomes if outcome is not None]


def isolation() -> Isolation:
    """Return what isolates the programs on this machine, as a job itself has seen it."""
    with _start_helper(DEFAULT) as helper:
        return helper.probe()


def require_isolation() -> Isolation:
    """Return what isolates the programs; raise Unprotected if that is too weak and not allowed."""
    seen = isolation()
    _refuse_weak(seen)
    return seen


def _refuse_weak(seen: Isolation) -> None:
    if seen.allowed and not unsafe_code():
        raise Unprotected(seen)


class _Helper:
    """A helper interpreter that runs one job at a time."""

    def __init__(self, folder: str, wrapped: list[str] | None) -> None:
        self.wrapped = wrapped is not None
        self.process = subprocess.Popen(
            [*(wrapped or [_python()]), "-s", "-S", str(INSIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},  # set order is the same in every run
            bufsize=0,
            start_new_session=True,  # Ctrl-C reaches only us
        )

    def probe(self) -> Isolation:
        """Return what a job sees denied and allowed."""
        outside = [__file__, tempfile.gettempdir()]
        reply = self._run({"program": "", "outside": outside}, {"probe": True}, DEFAULT, PROBE_SECONDS)
        if "report" not in reply.verdict:
            raise RuntimeError(f"the sandbox cannot run a job here: {_reason(reply, DEFAULT)}")
        layers, denied = reply.verdict["report"]
        tools = [bubblewrap.version()] if self.wrapped else []
        return Isolation(
            layers=(*tools, *layers),
            denied=tuple(name for name, was in denied.items() if was),
            allowed=tuple(name for name, was in denied.items() if not was),
        )

    def judge(self, job: Job, limits: Limits) -> Outcome:
        """Run a job and return its outcome."""
        program, checks = {"program": job.program}, {"checks": job.checks, "helpers": job.helpers}
        reply = self._run(program, checks, limits, limits.seconds)
        passed = reply.end == ENDED and reply.verdict.get("passed", False)
        return PASSED if passed else Outcome(False, _reason(reply, limits))

    def _run(
        self, program: Mapping[str, object], checks: Mapping[str, object], limits: Limits, seconds: float
    ) -> Reply:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        no_files = asdict(replace(limits, file_bytes=0))
        parts = [
            {"outside": [], "limits": asdict(limits), **program},
            {"checks": (), "helpers": "", "probe": False, "limits": no_files, **checks},
        ]
        header = HEADER.pack(seconds, limits.disk_bytes)
        try:
            _write_all(self.process.stdin, header + b"".join(map(_message, parts)))
            end, status, length = REPLY.unpack(_read_all(self.process.stdout, REPLY.size))
            output = _read_all(self.process.stdout, length)
        except (BrokenPipeError, EOFError):
            raise RuntimeError(
                f"the sandbox helper ended with code {self.process.wait()} while a job ran; "
                "see its standard error; the usual cause is too little memory"
            ) from None
        return Reply(end, status, json.loads(output) if end == ENDED and output else {})

    def close(self) -> None:
        """End the helper; it kills its job when its input closes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def _reason(reply: Reply, limits: Limits) -> str:
    """Return why a job failed; words of the program come last, because they may say anything."""
    status = reply.verdict.get("status", reply.status)
    if reply.end == TIMED_OUT:
        return f"timed out after {limits.seconds:g} s"
    if reply.end == FILLED:
        return f"disk: more than {limits.disk_bytes >> 20} MiB, or too many files"
    if status == -signal.SIGXCPU:
        return f"timed out after {limits.cpu_seconds} s of processor time"
    if "memory" in reply.verdict:
        return f"memory: more than {limits.memory_bytes >> 20} MiB"
    if "error" in reply.verdict:
        words = reply.verdict["error"][:LONGEST_REASON]
        return "failed: " + "".join(letter if letter.isprintable() else " " for letter in words)
    return f"killed by {signal.Signals(-status).name}" if status < 0 else "exited before the tests ended"


@contextmanager
def _start_helper(limits: Limits) -> Iterator[_Helper]:
    if os.name != "posix":
        raise RuntimeError(
            f"the sandbox needs fork and rlimits, which {sys.platform} lacks; use Linux or macOS"
        )
    wrapped = bubblewrap.wrap(_python(), INSIDE, 2 * limits.disk_bytes + (1 << 20))
    with _folder() if wrapped is None else nullcontext("/") as folder:
        helper = _Helper(folder, wrapped)
        try:
            yield helper
        finally:
            helper.close()


def _folder() -> AbstractContextManager[str]:
    """Make a folder for the jobs; the helper removes it too, in case we are killed."""
    return tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True)


def _python() -> str:
    return os.path.realpath(sys.executable)


def _message(content: dict[str, object]) -> bytes:
    body = json.dumps(content).encode()
    return LENGTH.pack(len(body)) + body


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
