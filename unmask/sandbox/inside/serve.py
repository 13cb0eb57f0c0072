"""Forks a child for each job, keeps the clock, kills and reaps; never reads a job itself."""

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

from unmask.sandbox.inside.child import CHANNEL, READY, live
from unmask.sandbox.inside.confine import adopt_orphans

SECONDS, REPLY = struct.Struct("<d"), struct.Struct("<?iI")
LONGEST = 4096


def serve() -> None:
    """Answers until the input ends. The child reads its job itself: nothing of it is in this process."""
    adopt_orphans()
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise touch, and so copy, every page of the helper
    base = Path.cwd()
    for number in count():
        header = os.read(0, SECONDS.size)
        if len(header) < SECONDS.size:
            return
        folder = base / str(number)
        folder.mkdir()
        os.write(1, _answer(SECONDS.unpack(header)[0], str(folder)))
        shutil.rmtree(folder, ignore_errors=True)


def _answer(seconds: float, folder: str) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, CHANNEL)
        live(folder)
    os.close(writing)
    if os.read(reading, 1) != READY:
        sys.exit("a job died before it was read")
    said, late = _listen(reading, time.monotonic() + seconds)
    status = _end(child)
    os.close(reading)
    return REPLY.pack(late, status, len(said)) + said


def _listen(channel: int, deadline: float) -> tuple[bytes, bool]:
    """What comes through the channel until it closes, and whether time ran out first."""
    said = b""
    while len(said) < LONGEST:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([channel], [], [], left)[0]:
            return said, True
        more = os.read(channel, LONGEST - len(said))
        if not more:
            break
        said += more
    return said, False


def _end(child: int) -> int:
    """Kills the child, its session and all orphans; gives the child's exit code."""
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
    """Processes that a job left behind, which only Linux hands to us."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
