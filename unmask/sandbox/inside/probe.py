"""Try what a program must not be able to do, from inside a job, and report what was denied."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path

PTRACE_SEIZE, PR_SET_PDEATHSIG = 0x4206, 1
IPC_PRIVATE, IPC_CREATE, IPC_REMOVE = 0, 0o1600, 0
LIBC = ctypes.CDLL(None, use_errno=True)


def denied(outside: str, folder: str) -> dict[str, bool]:
    """Return whether each attempt was denied; `outside` and `folder` are the caller's file and folder."""
    attempts: dict[str, Callable[[], object]] = {
        "reading files outside": lambda: Path(outside).read_bytes(),
        "writing files outside": lambda: _write(Path(folder)),
        "network": lambda: socket.socket(socket.AF_INET),
        "processes": _fork,
        "signals": lambda: os.kill(os.getppid(), 0),
        "slowing others": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
        "memory of others": lambda: _call(LIBC.ptrace, PTRACE_SEIZE, os.getppid(), None, None),
        "shared memory": _share,
        "new code in memory": lambda: mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC),
        "outliving its parent": lambda: _call(LIBC.prctl, PR_SET_PDEATHSIG, 0, 0, 0, 0),
    }
    return {name: _fails(attempt) for name, attempt in attempts.items()}


def _fails(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return True
    return False


def _call(function: Callable[..., int], *args: int | None) -> int:
    result = function(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), function.__name__)
    return result


def _write(folder: Path) -> None:
    path = folder / f"sandbox-{os.getpid()}"
    path.touch()
    path.unlink()


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _share() -> None:
    number = _call(LIBC.shmget, IPC_PRIVATE, mmap.PAGESIZE, IPC_CREATE)
    LIBC.shmctl(number, IPC_REMOVE, None)
