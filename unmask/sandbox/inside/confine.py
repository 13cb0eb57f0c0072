"""Drop the rights that a short program does not need, as far as the kernel can."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Mapping

from unmask.sandbox.inside import landlock, seccomp

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CAPABILITY_VERSION = 0x20080522
SIGKILL = 9
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded once, for all children


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant."""
    if LINUX:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def confine(limits: Mapping[str, int], folder: str) -> list[str]:
    """Drop rights for good; return the protections that hold from now on."""
    holds = ["own session", "own folder", "empty environment", "audit hook"]
    no_processes = False
    if LINUX:
        LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        holds += landlock.restrict(LIBC, folder, limits["file_bytes"] > 0)
        no_processes = seccomp.restrict(LIBC)
        if no_processes:
            holds += ["no network: seccomp", "no processes: seccomp", "no signals to others: seccomp"]
        elif LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0:
            holds.append("no network: network namespace")
        if _drop_capabilities():  # a new namespace grants some
            holds.append("no capabilities")
    return holds + _limit(limits, no_processes)


def _drop_capabilities() -> bool:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    return bool(LIBC.capset(header, (ctypes.c_uint32 * 6)()) == 0)


def _limit(limits: Mapping[str, int], no_processes: bool) -> list[str]:
    cpu = limits["cpu_seconds"]
    wanted = {  # name -> soft and hard limit
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_AS": (limits["memory_bytes"],) * 2,
        "RLIMIT_FSIZE": (limits["file_bytes"],) * 2,
        "RLIMIT_NOFILE": (limits["open_files"],) * 2,
        "RLIMIT_CORE": (0, 0),
    }
    if not no_processes:
        wanted["RLIMIT_NPROC"] = (0, 0)  # counts threads too on Linux; does not bind root
    held = [name for name, pair in wanted.items() if _set(name, pair)]
    ends = ["no processes: RLIMIT_NPROC"] if "RLIMIT_NPROC" in held and os.getuid() else []
    return [*ends, "rlimits: " + ", ".join(name[7:] for name in held)]


def _set(name: str, pair: tuple[int, int]) -> bool:
    what = getattr(resource, name)
    hard = resource.getrlimit(what)[1]
    soft, end = (value if hard == resource.RLIM_INFINITY else min(value, hard) for value in pair)
    try:
        resource.setrlimit(what, (soft, end))
    except (ValueError, OSError):  # macOS has RLIMIT_AS but rejects it
        return False
    return True
