"""Wrap a helper in bubblewrap, if it is installed and works: namespaces, and a folder in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

READABLE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/urandom", "/dev/zero")
SECONDS = 20.0  # limit of a trial run


def wrap(python: str, inside: Path, size: int) -> list[str] | None:
    """Return the command that runs Python in bubblewrap, or None if that does not work here."""
    program = shutil.which("bwrap")
    if program is None or not _works(program, python, inside):
        return None
    return _command(program, python, inside, size)


@lru_cache
def version() -> str:
    """Return the name and the version of the tool."""
    shown = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout
    return shown.strip()


@lru_cache
def _works(program: str, python: str, inside: Path) -> bool:
    command = [*_command(program, python, inside, 1 << 20), "-I", "-S", "-c", ""]
    try:
        return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _command(program: str, python: str, inside: Path, size: int) -> list[str]:
    prefixes = {os.path.realpath(path) for path in (sys.base_prefix, sys.base_exec_prefix)}
    readable = [path for path in (*READABLE, *sorted(prefixes), str(inside)) if path != "/"]
    return [
        *(program, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
        *(word for path in readable for word in ("--ro-bind-try", path, path)),
        *(word for path in DEVICES for word in ("--dev-bind", path, path)),
        *("--size", str(size), "--tmpfs", "/job", "--chdir", "/job", "--remount-ro", "/"),
        *("--", python),
    ]
