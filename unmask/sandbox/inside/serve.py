"""Fork processes for each job, watch its time and its files, kill and reap; never read a job itself."""

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
from typing import NoReturn

from unmask.sandbox.inside.checker import READY, run_job
from unmask.sandbox.inside.confine import adopt_orphans, confine_helper, die_with_parent
from unmask.sandbox.inside.preload import import_common

HEADER, REPLY = struct.Struct("<dQ"), struct.Struct("<BiI")  # seconds and bytes of a job; end, status, length
ENDED, TIMED_OUT, FILLED = range(3)
LONGEST = 1 << 16
MOST_ENTRIES = 1000  # files and folders of a job
LOOK_EVERY = 0.05  # seconds between looks at a job's files
LOOK_FOR_CALLER = 0.25


def serve() -> None:
    """Serve jobs in a child without rights until the input ends or the caller dies; remove the folder."""
    folder, caller = os.getcwd(), os.getppid()
    adopt_orphans()
    import_common()
    alive, held = os.pipe()  # closes when the child ends
    server = os.fork()
    if server == 0:
        _serve_jobs(folder)
    for stream in (0, 1, held):
        os.close(stream)
    while not select.select([alive], [], [], LOOK_FOR_CALLER)[0] and os.getppid() == caller:
        pass
    status = _kill(server)
    os.chdir("/")
    with contextlib.suppress(OSError):  # bubblewrap's folder cannot be removed, and need not be
        empty(folder)
        os.rmdir(folder)
    sys.exit(status if status > 0 else 0)


def _serve_jobs(folder: str) -> NoReturn:
    status = 1
    try:
        die_with_parent()
        adopt_orphans()
        layers = confine_helper(folder)
        gc.collect()
        gc.freeze()  # otherwise a collection in a child would copy every page
        while len(header := os.read(0, HEADER.size)) == HEADER.size:
            seconds, disk = HEADER.unpack(header)
            os.write(1, _run(seconds, disk, folder, layers))
        status = 0
    except SystemExit as ended:
        status = 1 if ended.code else 0
    finally:
        os._exit(status)


def _run(seconds: float, disk: int, folder: str, layers: list[str]) -> bytes:
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
        output, end = _watch(reading, time.monotonic() + seconds, disk, folder)
    finally:
        status = _kill(child)
        os.close(reading)
        empty(folder)
    return REPLY.pack(end, status, len(output)) + output


def _watch(channel: int, deadline: float, disk: int, folder: str) -> tuple[bytes, int]:
    """Return the output of a job, and how it ended. Exit if the input has ended."""
    output = b""
    while True:
        ready = select.select([channel, 0], [], [], max(0, min(LOOK_EVERY, deadline - time.monotonic())))[0]
        if 0 in ready:  # the input has ended: no job is sent while one runs
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
    """Return whether a folder holds more than `most_bytes`, or too many files."""
    waiting, entries, size = [folder], 0, 0
    while waiting:
        try:
            for entry in os.scandir(waiting.pop()):
                entries += 1
                size += (
                    entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
                )
                if entries > MOST_ENTRIES or size > most_bytes:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:  # a path that is too long, or a folder that cannot be read
            return True
    return False


def empty(folder: str) -> None:
    """Remove everything in a folder, moving nested entries up first, because deep paths may be too long."""
    mark, numbers = secrets.token_hex(4), itertools.count()
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            for inner in list(os.scandir(entry.path)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, 0o700)  # moving a folder needs write access to it
                os.rename(inner.path, f"{folder}/{mark}{next(numbers)}")
            os.rmdir(entry.path)
