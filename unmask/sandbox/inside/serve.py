"""Fork a child per job, watch the clock, kill and reap; never read a job itself."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import signal
import struct
import sys
import time
from itertools import count
from pathlib import Path

from unmask.sandbox.inside.child import CHANNEL, READY, run_job
from unmask.sandbox.inside.confine import adopt_orphans

SECONDS, REPLY = struct.Struct("<d"), struct.Struct("<?iI")
LONGEST = 4096


def serve() -> None:
    """Serve jobs until the input ends. The child reads its job, so none of it is in this process."""
    adopt_orphans()
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would copy every page of the helper
    base = Path.cwd()
    for number in count():
        header = os.read(0, SECONDS.size)
        if len(header) < SECONDS.size:
            return
        folder = base / str(number)
        folder.mkdir()
        os.write(1, _run_child(SECONDS.unpack(header)[0], str(folder)))
        shutil.rmtree(folder, ignore_errors=True)


def _run_child(seconds: float, folder: str) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, CHANNEL)
        run_job(folder)
    os.close(writing)
    if os.read(reading, 1) != READY:
        sys.exit("a job died before it was read")
    output, timed_out = _read_channel(reading, time.monotonic() + seconds)
    status = _kill(child)
    os.close(reading)
    return REPLY.pack(timed_out, status, len(output)) + output


def _read_channel(channel: int, deadline: float) -> tuple[bytes, bool]:
    """Read the channel until it closes; also return whether time ran out first."""
    output = b""
    while len(output) < LONGEST:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([channel], [], [], left)[0]:
            return output, True
        more = os.read(channel, LONGEST - len(output))
        if not more:
            break
        output += more
    return output, False


def _kill(child: int) -> int:
    """Kill the child, its session and all orphans; return the child's exit code."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    while True:
        for orphan in _orphans():
            os.kill(orphan, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return status


def _orphans() -> list[int]:
    """Return the orphans of a job; only Linux hands them to us."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
