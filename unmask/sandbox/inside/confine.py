"""Drop the rights that a short program does not need, as far as the kernel can."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Mapping

from unmask.sandbox.inside import landlock, seccomp

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
CAPABILITY_VERSION = 0x20080522
SIGKILL = 9
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded once, for all children


def adopt_orphans() -> None:
    """Make this process the parent of every orphaned descendant."""
    if LINUX:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    if LINUX:
        LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def confine_helper(folder: str) -> list[str]:
    """Drop the rights that no job needs, for this process and its children; return the active layers."""
    if not LINUX:
        return []
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    layers = landlock.restrict(LIBC, folder)
    _drop_capabilities()
    return [*layers, "seccomp"] if seccomp.restrict(LIBC, seccomp.HELPER) else layers


def confine_job(limits: Mapping[str, int]) -> str:
    """Drop the rights that only the helper needs, and limit the resources; return the limits set."""
    held = _limit(limits)
    if LINUX:
        seccomp.restrict(LIBC, seccomp.JOB)
    return held


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    LIBC.capset(header, (ctypes.c_uint32 * 6)())


def _limit(limits: Mapping[str, int]) -> str:
    cpu = limits["cpu_seconds"]
    wanted = {  # name -> soft and hard limit
        "RLIMIT_CPU": (cpu, cpu + 1),
        "RLIMIT_AS": (limits["memory_bytes"],) * 2,
        "RLIMIT_FSIZE": (limits["file_bytes"],) * 2,
        "RLIMIT_NOFILE": (limits["open_files"],) * 2,
        "RLIMIT_CORE": (0, 0),
    }
    held = [name for name, pair in wanted.items() if _set(name, pair)]
    return "rlimits: " + ", ".join(name[7:] for name in held)


def _set(name: str, pair: tuple[int, int]) -> bool:
    what = getattr(resource, name)
    hard = resource.getrlimit(what)[1]
    soft, end = (value if hard == resource.RLIM_INFINITY else min(value, hard) for value in pair)
    try:
        resource.setrlimit(what, (soft, end))
    except (ValueError, OSError):  # macOS has RLIMIT_AS but rejects it
        return False
    return True
