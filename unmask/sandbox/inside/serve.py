"""Fork a process per job, watch its time and its files, kill and reap; never read a job itself."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import secrets
import select
import signal
import struct
import sys
import time
from pathlib import Path

from unmask.sandbox.inside.checker import READY, run_job
from unmask.sandbox.inside.confine import adopt_orphans, confine_helper
from unmask.sandbox.inside.preload import import_common

HEADER, REPLY = struct.Struct("<dQ"), struct.Struct("<BiI")  # seconds and bytes of a job; end, status, length
ENDED, TIMED_OUT, FILLED = range(3)
LONGEST = 1 << 16
MOST_ENTRIES = 1000  # files and folders of a job
LOOK_EVERY = 0.05  # seconds


def serve() -> None:
    """Serve jobs until the input ends or the caller has died; then remove the folder."""
    folder, caller = os.getcwd(), os.getppid()
    try:
        adopt_orphans()
        import_common()
        layers = confine_helper(folder)
        gc.collect()
        gc.freeze()  # otherwise a collection in a child would copy every page of the helper
        while header := _next_job(caller):
            os.write(1, _run(*header, folder, caller, layers))
    finally:
        os.chdir("/")
        with contextlib.suppress(OSError):  # in a container it cannot be removed, and need not be
            os.rmdir(folder)


def _next_job(caller: int) -> tuple[float, int] | None:
    while not select.select([0], [], [], 1.0)[0]:
        if os.getppid() != caller:
            return None
    header = os.read(0, HEADER.size)
    return HEADER.unpack(header) if len(header) == HEADER.size else None


def _run(seconds: float, disk: int, folder: str, caller: int, layers: list[str]) -> bytes:
    """Run a job, whose text comes next on standard input; return the reply."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        run_job(writing, layers)
    os.close(writing)
    try:
        if os.read(reading, 1) != READY:
            sys.exit("a job died before it was read")
        output, end = _watch(reading, time.monotonic() + seconds, disk, folder, caller)
    finally:
        status = _kill(child)
        os.close(reading)
        empty(folder)
    return REPLY.pack(end, status, len(output)) + output


def _watch(channel: int, deadline: float, disk: int, folder: str, caller: int) -> tuple[bytes, int]:
    """Return the output of a job, and how it ended. Leave if the caller has died."""
    output = b""
    while True:
        ready = select.select([channel, 0], [], [], max(0, min(LOOK_EVERY, deadline - time.monotonic())))[0]
        if 0 in ready or os.getppid() != caller:  # no other job may come now, so the input has ended
            sys.exit()
        if channel in ready:
            more = os.read(channel, LONGEST)
            output += more
            if not more or len(output) > LONGEST:
                return output, ENDED
        elif time.monotonic() >= deadline:
            return output, TIMED_OUT
        elif holds_more(folder, disk):
            return output, FILLED


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


def holds_more(folder: str, most_bytes: int) -> bool:
    """Return whether a folder holds more than so many bytes, or too many files."""
    waiting, entries, size = [folder], 0, 0
    while waiting:
        try:
            for entry in os.scandir(waiting.pop()):
                entries += 1
                size += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
                if entries > MOST_ENTRIES or size > most_bytes:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:  # a path that is too long, or a closed folder
            return True
    return False


def empty(folder: str) -> None:
    """Remove everything in a folder, however deep: what its folders hold moves up until none is left."""
    mark, numbers = secrets.token_hex(4), itertools.count()
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)  # to move a folder is to write in it
                os.rename(inner.path, f"{folder}/{mark}{next(numbers)}")
            os.rmdir(entry.path)
