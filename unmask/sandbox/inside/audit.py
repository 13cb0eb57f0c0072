"""An audit hook that denies dangerous operations; Python code cannot remove it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

CHECK = "<check"  # prefix of the file names of checks
MODULES = frozenset(
    {"ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_interpreters", "_xxsubinterpreters"}
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
DENIED = frozenset(
    {
        *("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen", "pty.spawn"),
        *("os.kill", "os.killpg", "signal.pthread_kill"),
        *("os.chmod", "os.chown", "os.chflags", "os.utime", "os.setxattr", "os.removexattr"),
        *("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"),
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
        *("sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile"),
        *("sys.monitoring.register_callback", "sys.addaudithook", "cpython._PySys_ClearAuditHooks"),
    }
)
CHANGES = frozenset(
    {
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "sqlite3.connect",
    }
)
CODE = frozenset({"f_code", "__code__", "gi_code", "cr_code", "ag_code"})
Hook = Callable[[str, tuple[Any, ...]], None]


def make_hook(limits: Mapping[str, int], folder: str) -> Hook:
    """Make the hook of one job, which may open `open_files` files in its folder for writing."""
    left = limits["open_files"] if limits["file_bytes"] else 0
    inside = os.path.realpath(folder) + os.sep
    looking = False  # our own look at code is audited too

    def deny(what: str) -> None:
        raise PermissionError(f"the sandbox denies {what}")

    def write(path: Any) -> None:
        nonlocal left
        if isinstance(path, int) or path == os.devnull:
            return
        name = os.fsdecode(path)
        if not left or not os.path.realpath(name).startswith(inside):
            deny(f"writing {name}")
        left -= 1

    def hide_checks(thing: Any, name: str) -> None:
        nonlocal looking
        if looking:
            return
        looking = True
        try:
            code = getattr(thing, name)
        finally:
            looking = False
        if isinstance(code, CodeType) and code.co_filename.startswith(CHECK):
            deny("the code of a check")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "object.__getattr__":
            if args[1] in CODE:
                hide_checks(*args)
        elif event == "open":
            if args[2] & WRITING:
                write(args[0])
        elif event == "import":
            if str(args[0]).rpartition(".")[2] in MODULES:
                deny(f"importing {args[0]}")
        elif event == "sys._getframe":  # the standard library handles this error
            raise ValueError("the sandbox denies frames")
        elif event in CHANGES:
            for path in args:
                if not isinstance(path, int):
                    write(path)
        elif event in DENIED or event.startswith("ctypes."):
            deny(event)

    return hook
