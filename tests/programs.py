"""Runs python programs, each in a process of its own, after one import of the package for all of them.

python -m tests.programs < programs.json    prints [exit code, stdout, stderr] of each
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from tempfile import TemporaryFile

import unmask.public  # noqa: F401 torch and all of unmask, before the processes part


def run(code: str) -> tuple[int, str, str]:
    """Run a program in a child process, in the namespace of a main module."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = os.fork()
        if process == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            failed = 1
            try:
                exec(compile(code, "<program>", "exec"), vars(sys.modules["__main__"]))
                failed = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(failed)
        _, status = os.waitpid(process, 0)
        for file in (out, err):
            file.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


if __name__ == "__main__":
    print(json.dumps([run(code) for code in json.load(sys.stdin)]))
