"""Layers apart: without bubblewrap, as another user, without the kernel's filters; and a killed caller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sandbox import attacks
from tests.sandbox.conftest import children
from tests.sandbox.test_attacks import FILES, HONEST, KILLS, NETWORK, SHORT, WRONG
from unmask.sandbox import Job, Limits, Outcome, Unprotected, isolation, run, run_jobs
from unmask.sandbox.isolation import UNSAFE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such layers")

HARMLESS = [call.replace(", 9)", ", 0)") for call in KILLS.values()]  # signals that only ask
ALL = [
    *attacks.LIES.values(),
    *attacks.SEARCHES.values(),
    *attacks.NATIVE.values(),
    attacks.FILLS["many databases"],
    attacks.LITTER,
    *(f"import os, signal, resource\n{call}\n{WRONG}" for call in HARMLESS),
    *(f"import socket\n{call}\n{WRONG}" for call in NETWORK.values()),
]
HOLDING = {"reading files outside", "writing files outside", "network", "processes", "signals"}


def test_isolation_reports_what_a_job_saw_denied():
    seen = isolation()
    assert set(seen.denied) >= HOLDING
    assert seen.allowed == ()
    assert "seccomp" in seen.layers
    assert ("bubblewrap" in str(seen)) == (shutil.which("bwrap") is not None)


def test_a_bubblewrap_that_does_not_work_is_not_used(tmp_path, monkeypatch):
    """As in a container without user namespaces."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "bubblewrap" not in str(isolation())
    assert isolation().allowed == ()


def test_without_bubblewrap_all_attacks_fail(no_bubblewrap):
    assert "bubblewrap" not in str(isolation())
    assert all(name in str(isolation()) for name in ("Landlock", "seccomp"))
    outcomes = run_jobs([*(Job(program, attacks.CHECKS) for program in ALL), HONEST], Limits(seconds=2))
    assert [outcome.passed for outcome in outcomes] == [False] * len(ALL) + [True]


def test_without_bubblewrap_files_are_kept(no_bubblewrap, tmp_path):
    path = tmp_path / "precious"
    path.write_text("text")
    before = path.stat()
    programs = [f"import os\n{call.format(path=str(path))}\n{WRONG}" for call in FILES.values()]
    outcomes = run_jobs([Job(program, attacks.CHECKS) for program in programs])
    assert not any("AssertionError" in outcome.reason for outcome in outcomes)
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]


# for other interpreters: they import the sandbox alone, which needs no package
ALONE = """
import json, os, sys, tempfile, time
from types import ModuleType
package = ModuleType("unmask")
package.__path__ = [{unmask!r}]
sys.modules["unmask"] = package
from unmask.sandbox import Job, Limits, bubblewrap, isolation, run_jobs
if {own!r}:
    bubblewrap.wrap = lambda *given: None
"""
UNMASK = Path(run.__file__).parents[1]
ATTACKED = """
jobs = [Job(program, tuple(checks)) for program, checks in json.load(sys.stdin)]
outcomes = run_jobs(jobs, Limits(seconds=2)) if jobs else []
print(json.dumps([str(isolation()), list(isolation().allowed), [outcome.passed for outcome in outcomes]]))
"""


def python_for_all() -> str | None:
    """Return a Python that every user may run."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            command = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
            try:
                if subprocess.run(command, user=65534, group=65534, extra_groups=[]).returncode == 0:
                    return path
            except OSError:
                continue
    return None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("own", [False, True], ids=["bubblewrap if installed", "own layers"])
def test_all_attacks_fail_as_an_ordinary_user(own, tmp_path):
    python = python_for_all()
    if python is None:
        pytest.skip("no Python that another user may run")
    # the code is copied: a checkout may lie where another user may not read
    code = Path("/tmp" if not os.access("/var/tmp", os.W_OK) else "/var/tmp") / f"unmask-{os.getpid()}-{own}"
    try:
        shutil.copytree(UNMASK / "sandbox", code / "sandbox")
        shutil.copy(UNMASK / "errors.py", code)
        code.chmod(0o755)
        done = subprocess.run(
            [python, "-c", ALONE.format(unmask=str(code), own=own) + ATTACKED],
            input=json.dumps(
                [*((program, attacks.CHECKS) for program in ALL), (HONEST.program, HONEST.checks)]
            ),
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
        )
    finally:
        shutil.rmtree(code)
    assert done.stderr == ""
    described, allowed, passed = json.loads(done.stdout)
    assert "seccomp" in described
    assert allowed == []
    assert passed == [False] * len(ALL) + [True]


START = """
import runpy, sys
sys.path[0] = {inside!r}
runpy.run_path({inside!r} + "/__main__.py", run_name="helper")["only_this_folder"]()
from unmask.sandbox.inside import landlock, seccomp, serve
{change}
serve.serve()
"""
CHANGES = {
    "seccomp": "seccomp.HELPER = seccomp.JOB = b''",
    "Landlock": "landlock.restrict = lambda *given: []",
    "both": "seccomp.HELPER = seccomp.JOB = b''; landlock.restrict = lambda *given: []",
}


@pytest.fixture
def lacking(tmp_path, monkeypatch, no_bubblewrap):
    """Swaps the helper for one that lacks a layer."""

    def use(what: str) -> None:
        script = tmp_path / "helper.py"
        script.write_text(START.format(inside=str(run.INSIDE), change=CHANGES[what]))
        monkeypatch.setattr(run, "INSIDE", script)

    return use


@pytest.mark.parametrize("what", CHANGES)
def test_without_a_layer_programs_are_refused_unless_the_user_allows_them(what, lacking, monkeypatch):
    lacking(what)
    with pytest.raises(Unprotected) as caught:
        run_jobs([HONEST])
    assert "--unsafe-code" in str(caught.value)
    assert caught.value.isolation.allowed == isolation().allowed != ()
    monkeypatch.setenv(UNSAFE, "1")
    assert run_jobs([HONEST]) == [Outcome(True, "passed")]


def test_lies_win_nothing_even_without_layers(lacking, monkeypatch):
    lacking("both")
    monkeypatch.setenv(UNSAFE, "1")
    programs = [*attacks.LIES.values(), *list(attacks.SEARCHES.values())[:4]]
    outcomes = run_jobs([Job(program, attacks.CHECKS) for program in programs])
    assert not any(outcome.passed for outcome in outcomes)


def test_children_in_sessions_of_their_own_are_found_and_killed(lacking, monkeypatch):
    """Needs the helper as the parent of orphans; the fixture of this folder sees whoever survives."""
    lacking("both")
    monkeypatch.setenv(UNSAFE, "1")
    program = (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            os.setsid()\n        time.sleep(60)\n        os._exit(0)\n"
        "time.sleep(0.1)\n"
    )
    assert not run_jobs([Job(program + WRONG, attacks.CHECKS)], SHORT)[0].passed


CALLER = """
tempfile.tempdir = {folder!r}
program = "open('file', 'w').write('x')\\nimport os; os.mkdir('d')\\nwhile True: pass"
caller = os.getpid()
def outlive():  # a child that keeps the caller's pipes open
    if os.fork() == 0:
        while os.getppid() == caller: time.sleep(0.05)
        time.sleep(1); os._exit(0)
import threading; threading.Timer(1, outlive).start()
run_jobs([Job(program, ())] * 2, Limits(seconds=60, cpu_seconds=60), workers=2)
"""


@pytest.mark.parametrize("own", [False, True], ids=["bubblewrap if installed", "own layers"])
def test_a_killed_caller_leaves_no_job_and_no_folder(own, tmp_path):
    before = children()
    program = ALONE.format(unmask=str(UNMASK), own=own) + CALLER.format(folder=str(tmp_path))
    caller = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while len(descendants(caller.pid)) < 9 and time.monotonic() < deadline:  # 4 of each job, 1 child
        time.sleep(0.05)
    jobs = descendants(caller.pid)
    assert len(jobs) >= 9
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    while (any(map(is_running, jobs)) or list(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [Path(f"/proc/{pid}/cmdline").read_text() for pid in jobs if is_running(pid)] == []
    assert list(tmp_path.iterdir()) == []
    while orphans := children() - before:
        os.waitpid(int(orphans.pop()), 0)


def descendants(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = {int(word) for word in task.read_text().split()}
        except OSError:
            continue
        found |= below.union(*map(descendants, below))
    return found


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
