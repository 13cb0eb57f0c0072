"""Run the checks of one job, in a process that shares only a pair of pipes with the program."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import random
import symtable
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from unmask.sandbox.inside import pipes
from unmask.sandbox.inside.confine import confine_job, die_with_parent
from unmask.sandbox.inside.preload import import_extensions
from unmask.sandbox.inside.program import start_program
from unmask.sandbox.inside.remote import Link, Refused, Remote, is_module

READY = b"."  # sent when the job has been read, so that the clock may start
FRAMES = 10_000
LOOKS = 20  # checks whether a process that should have ended has ended
LONGEST_WORDS = 1000
Step = tuple[str, Callable[[], object]]  # label for errors, and action


def run_job(channel: int, layers: list[str]) -> NoReturn:
    """Start the program in a child, run the checks here, send the verdict, and exit."""
    leave = os._exit
    try:
        os.setsid()
        die_with_parent()
        program = json.loads(pipes.receive(0))
        child, link = start_program(program, layers)  # before the checks are read: it must not see them
        job = json.loads(pipes.receive(0))
        pipes.leave_streams()
        os.write(channel, READY)
        random.seed()  # the program has a copy of the random state
        os.chdir("/")  # the program cannot write here
        sys.setrecursionlimit(FRAMES)
        os.write(channel, json.dumps(_judge(job, link, child)).encode())  # short, so it is written at once
    finally:
        leave(0)


def _judge(job: Mapping[str, Any], link: Link, child: int) -> dict[str, Any]:
    """Return the verdict: "passed", or the reason of a failure."""
    label = ""
    try:
        wanted = _free_names([job["helpers"], *job["checks"]])
        steps = _check_steps(job["helpers"], job["checks"], wanted, link)
        modules = [f"import {name}" for name in wanted & sys.stdlib_module_names]
        import_extensions("\n".join([job["helpers"], *job["checks"], *modules]))
        confine_job(job["limits"])
        label = "the program"
        report = link.answer([])
        for label, step in steps:  # noqa: B007 a failure is reported with the label
            step()
    except pipes.Closed:
        pass
    except SystemExit:
        return {"status": 0}
    except MemoryError:
        return {"memory": True}
    except Refused:
        return {"error": f"{link.problem[:LONGEST_WORDS]} ({label})"}
    except BaseException as error:  # any exception is a failure
        return {"error": _describe(error, label)}
    if link.closed:
        return {"status": _exit_code(child)}
    if link.problem:
        return {"error": link.problem[:LONGEST_WORDS]}
    return {"passed": True, **({"report": report} if job["probe"] else {})}


def _exit_code(child: int) -> int:
    """Return the exit code of the program's process; 0 if it has only closed its pipes."""
    for _ in range(LOOKS):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return 0


def _check_steps(helpers: str, checks: Sequence[str], wanted: set[str], link: Link) -> list[Step]:
    """Compile the checks; return the steps that run them, each with its label."""
    names: dict[str, Any] = {"__name__": "checks", "__builtins__": builtins}
    steps: list[Step] = [("the helpers", partial(exec, _compile(helpers, "<helpers>"), names))]
    for number, check in enumerate(checks, 1):
        label, code = f"check {number}", _compile(check, f"<check {number}>")
        steps += [(label, partial(_take_names, wanted, names, link)), (label, partial(exec, code, names))]
    return steps


def _compile(source: str, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(source, name, "exec", dont_inherit=True, optimize=0)


def _free_names(sources: Sequence[str]) -> set[str]:
    """Return the names that the helpers and the checks expect from the program.

    A program's own `sum` counts only if the checks use no other name: it may be the function under test, but
    it must not replace the builtin that a check needs to test another function.
    """
    used, defined = set[str](), set[str]()
    for number, source in enumerate(sources):
        top = symtable.symtable(source, f"<check {number}>" if number else "<helpers>", "exec")
        defined |= {
            symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()
        }
        used.update(_global_names(top))
    free = used - defined
    return {name for name in free if not hasattr(builtins, name)} or free


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _global_names(inner)


def _take_names(wanted: set[str], names: dict[str, Any], link: Link) -> None:
    """Fetch the program's objects once, but its plain data every time, because it may have changed."""
    for name in wanted:
        if isinstance(names.get(name), Remote):
            continue
        try:
            value = link.ask("global", name)
        except KeyError:  # the program does not define it
            continue
        if is_module(value) and name in sys.stdlib_module_names:
            value = importlib.import_module(name)  # ours, not the program's
        names[name] = value


def _describe(error: BaseException, label: str) -> str:
    try:
        words = f": {error}" if str(error) else ""
    except BaseException:  # the error holds an object of the program
        words = ""
    return f"{type(error).__name__}{words}"[:LONGEST_WORDS] + (f" ({label})" if label else "")
