"""Run one job, in the process forked for it."""

from __future__ import annotations

import _thread
import builtins
import gc
import importlib
import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, NoReturn
from unittest import TestCase

from unmask.sandbox.inside.audit import CHECK, make_hook
from unmask.sandbox.inside.confine import confine
from unmask.sandbox.inside.guard import compile_check, make_guard

CHANNEL = 3  # where the verdict goes
READY = b"."  # sent first: the job was read, the clock may start
LENGTH = struct.Struct("<I")
Step = tuple[str, Callable[[], Any]]  # label for errors, and action

# loaded before the first job, for a fast start, and restored before the checks run
MODULES = tuple(
    importlib.import_module(name)
    for name in (
        *(
            "builtins",
            "math",
            "cmath",
            "operator",
            "functools",
            "itertools",
            "collections",
            "_collections_abc",
        ),
        *(
            "heapq",
            "bisect",
            "re",
            "string",
            "random",
            "typing",
            "datetime",
            "decimal",
            "_pydecimal",
            "fractions",
        ),
        *("numbers", "statistics", "copy", "hashlib", "json", "enum", "dataclasses", "unittest", "sys", "os"),
    )
)


def run_job(folder: str) -> NoReturn:
    """Read a job, drop all rights, run it, and exit."""
    leave = os._exit
    try:
        os.setsid()
        _run(_prepare(_read_job(), folder))
    except Exception as error:  # e.g. a check that does not compile
        os.write(CHANNEL, _describe("", error))
    finally:
        leave(0)


def _read_job() -> dict[str, Any]:
    """Read the job from the helper's input, then close all of the helper's streams."""
    length = LENGTH.unpack(_read(LENGTH.size))[0]
    job: dict[str, Any] = json.loads(_read(length))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(CHANNEL + 1, 256)
    os.write(CHANNEL, READY)
    return job


def _read(length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += os.read(0, length - len(data))
    return data


def _prepare(job: dict[str, Any], folder: str) -> list[tuple[Step, ...]]:
    """Return the steps in a list that `_run` empties, so that no frame keeps them."""
    os.chdir(folder)
    holds = confine(job, folder)
    if "probe" in job:
        steps: tuple[Step, ...] = (("", partial(os.write, CHANNEL, json.dumps(holds).encode())),)
    else:
        steps = _steps(job)
    sys.addaudithook(make_hook(job, folder))
    _forget_ourselves()
    return [steps]


def _steps(job: Mapping[str, Any]) -> tuple[Step, ...]:
    """Return the steps of a job: the program, the cleanup, each check, and the verdict."""
    module = ModuleType("program")
    names = vars(module)
    guard = make_guard(MODULES)
    checks = [
        (f"check {number}", compile_check(source, f"{CHECK} {number}>", guard))
        for number, source in enumerate(job["checks"], 1)
    ]
    return (
        *(("", partial(sys.modules.__setitem__, name, module)) for name in ("program", "__main__")),
        ("the program", partial(_run_program, job["program"], names, compile, exec)),
        *(("the program", step) for step in _cleanup()),
        ("", partial(names.__setitem__, "__builtins__", builtins)),
        *((label, partial(exec, code, names)) for label, code in checks),
        ("", partial(os.write, CHANNEL, job["token"].encode())),
        ("", partial(os._exit, 0)),
    )


def _run_program(source: str, names: dict[str, Any], compile: Any, exec: Any) -> None:
    exec(compile(source, "<program>", "exec", dont_inherit=True, optimize=0), names)


def _cleanup() -> list[Callable[[], Any]]:
    """Return actions that restore the interpreter; all lookups happen before the program runs."""
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    cases = [
        partial(setattr, TestCase, name, value)
        for name, value in vars(TestCase).items()
        if name not in ("__dict__", "__weakref__")
    ]
    return [
        partial(_no_threads, _thread._count),
        *(partial(signal.setitimer, timer, 0) for timer in timers),
        gc.callbacks.clear,
        *(partial(vars(module).update, dict(vars(module))) for module in MODULES),
        *cases,
        partial(sys.modules.update, {module.__name__: module for module in MODULES}),
    ]


def _no_threads(count: Callable[[], int]) -> None:
    if count():
        raise RuntimeError("threads still ran when the program had ended")


def _forget_ourselves() -> None:
    """Unload this package and ctypes; their functions are useless without their globals."""
    for name in list(sys.modules):
        package = name.partition(".")[0]
        if package in ("unmask", "ctypes", "_ctypes"):
            module = sys.modules.pop(name)
            if package != "unmask":
                vars(module).clear()


def _run(box: list[tuple[Step, ...]]) -> None:
    """Run the steps. Only the loop's iterator, on this frame's stack, refers to those still to come."""
    write, label = os.write, ""
    try:
        for label, step in box.pop():  # noqa: B007 the label is for a failure
            step()
    except SystemExit:
        return
    except BaseException as error:  # any exception is a failure
        write(CHANNEL, _describe(label, error))


def _describe(label: str, error: BaseException) -> bytes:
    if isinstance(error, MemoryError):
        return b"memory"
    try:
        words = f": {error}"[:1000] if str(error) else ""
    except BaseException:  # the program's own __str__
        words = ""
    where = f" ({label})" if label else ""
    return f"{type(error).__name__}{words}{where}".encode(errors="replace")
