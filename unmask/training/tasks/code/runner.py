"""Runs generated programs, each in a process of its own with limits. Started as a script, never imported.

Reads a JSON list of [program, entry, tests] from the standard input and writes a JSON list of verdicts.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys

SECONDS = 3.0
MEMORY = 1 << 29


def limit() -> None:
    """Takes from this process what a short pure function does not need."""
    os.setsid()
    for what, amount in (
        (resource.RLIMIT_CPU, 2),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (amount, amount))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def passes(program: str, entry: str, tests: list[list[str]]) -> bool:
    """Whether the function passes every test; an empty `entry` means the first function."""
    names: dict[str, object] = {"__name__": "program"}
    exec(compile(program, "program", "exec"), names)
    functions = [value for value in names.values() if type(value) is type(passes)]
    candidate = names[entry] if entry else functions[0]
    return all(
        eval(f"candidate({given})", {"candidate": candidate}) == eval(wanted) for given, wanted in tests
    )


def judged(program: str, entry: str, tests: list[list[str]]) -> bool:
    """The verdict of a child process; one that dies, hangs or leaves early has failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            limit()
            os.write(writing, b"1" if passes(program, entry, tests) else b"0")
        finally:
            os._exit(0)
    os.close(writing)
    verdict = os.read(reading, 1) if select.select([reading], [], [], SECONDS)[0] else b""
    os.close(reading)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # and whatever it started
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return verdict == b"1"


if __name__ == "__main__":
    json.dump([judged(*job) for job in json.load(sys.stdin)], sys.stdout)
