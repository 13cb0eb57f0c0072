"""`unmask` under a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

# a parent under nohup or CI may ignore SIGINT, and a child inherits that; preexec_fn and threads do not mix
# the first terminal that the leader of a session opens sends it Ctrl-C
START = """
import os, runpy, signal
os.close(os.open(os.ttyname(0), os.O_RDWR))
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("unmask", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """A process under a pseudo-terminal."""

    def __init__(self, *arguments: object, rows: int = 24, columns: int = 90) -> None:
        self.master, slave = pty.openpty()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": str(rows),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, arguments)],
            stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.output = ""

    def wait_for(self, text: str, *, count: int = 1, seconds: float = 60) -> None:
        deadline = monotonic() + seconds
        while self.plain.count(text) < count:
            assert monotonic() < deadline, f"{text!r} did not come; got {self.plain[-2000:]!r}"
            if not self._read():
                break
        assert self.plain.count(text) >= count, self.plain[-2000:]

    def finish(self, *, seconds: float = 60) -> int:
        """Exit code of the process, which must end in time."""
        deadline = monotonic() + seconds
        while self._read():
            if monotonic() > deadline:
                self.close()
                pytest.fail(f"the process did not end; got {self.plain[-2000:]!r}")
        return self.process.wait(timeout=max(1.0, deadline - monotonic()))

    def close(self) -> None:
        """End the process, whatever it does, and give the terminal back; may be called twice."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def type(self, text: str | bytes) -> None:
        """Press keys; read what the terminal echoes, as it takes few of them at a time."""
        keys = text.encode() if isinstance(text, str) else text
        for start in range(0, len(keys), 1000):
            os.write(self.master, keys[start : start + 1000])
            if start:
                self._read()

    @property
    def plain(self) -> str:
        return PLAIN.sub("", self.output).replace("\r", "")

    def _read(self) -> bool:
        """Whether there may be more."""
        ready, _, _ = select.select([self.master], [], [], 0.5)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            return False
        self.output += data.decode(errors="replace")
        return bool(data)
