"""Each layer alone: the kernel without the audit hook, and the helper without the kernel's filters."""

from __future__ import annotations

import sys
from dataclasses import asdict

import pytest

from tests.sandbox.test_attacks import CHECKS, FILES, FORGERIES, HONEST, KILLS, NETWORK, SHORT, WRONG
from unmask.sandbox import Job, Limits, Outcome, run, run_jobs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such layers")

START = """
import runpy, sys
sys.path[0] = {inside!r}
runpy.run_path({inside!r} + "/__main__.py", run_name="helper")["only_this_folder"]()
from unmask.sandbox.inside import child, confine, landlock, seccomp, serve
{change}
serve.serve()
"""
CHANGES = {
    "no hook": "child.make_hook = lambda *given: lambda *event: None",
    "no filters": (
        "seccomp.PROGRAM = b''; landlock.restrict = lambda *given: []\n"
        "child.make_hook = lambda *given: lambda *event: None"
    ),
}


@pytest.fixture
def weaker(tmp_path, monkeypatch):
    """Swaps the helper for one that lacks a layer."""

    def use(what: str) -> None:
        script = tmp_path / "helper.py"
        script.write_text(START.format(inside=str(run.INSIDE), change=CHANGES[what]))
        monkeypatch.setattr(run, "INSIDE", script)

    return use


def outcome_of(program: str) -> Outcome:
    outcome, neighbour = run_jobs([Job(program, CHECKS), HONEST], SHORT)
    assert neighbour == Outcome(True, "passed")
    return outcome


@pytest.mark.parametrize(
    "call",
    [
        "os.fork()",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['/bin/true'])",
        *KILLS.values(),
        *(f"import socket; {call}" for call in NETWORK.values()),
    ],
)
def test_the_kernel_alone_denies_processes_signals_and_the_network(weaker, call):
    weaker("no hook")
    harmless = call.replace(", 9)", ", 0)")  # a signal that only asks, should the kernel let it through
    reason = outcome_of(f"import os, signal, resource\n{harmless}\n" + WRONG).reason
    assert "Permission" in reason or "not permitted" in reason


@pytest.mark.parametrize("call", FILES.values(), ids=FILES.keys())
def test_the_kernel_alone_keeps_files(weaker, call, tmp_path):
    weaker("no hook")
    (tmp_path / "outside").mkdir()
    path = tmp_path / "outside" / "precious"
    path.write_text("text")
    before = path.stat()
    outcome = outcome_of("import os\n" + call.format(path=str(path)) + "\n" + WRONG)
    assert "AssertionError" not in outcome.reason
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert path.read_text() == "text"
    assert list(path.parent.iterdir()) == [path]


def test_the_kernel_alone_stops_a_fork_bomb(weaker):
    weaker("no hook")
    bomb = "import os\nwhile True:\n    os.fork()\n"
    assert "PermissionError" in outcome_of(bomb).reason


@pytest.mark.parametrize("trick", ["finds ctypes among the classes", "reads its memory"])
def test_without_the_hook_these_still_fail(weaker, trick):
    weaker("no hook")
    assert "AssertionError" not in outcome_of(WRONG + FORGERIES[trick]).reason


def test_a_network_namespace_stands_in_for_seccomp(weaker):
    weaker("no filters")
    with run._start_helper() as helper:
        held = helper.run({"probe": True, **asdict(Limits())}, 9.0).output.decode()
    assert "seccomp" not in held
    if "no network: network namespace" not in held:
        pytest.skip("this kernel gives no user namespaces")
    for host in ("127.0.0.1", "192.0.2.1"):
        program = f"import socket\nsocket.create_connection(({host!r}, 9), 0.3)\n"
        assert "Network is unreachable" in outcome_of(program + WRONG).reason


def test_children_in_sessions_of_their_own_are_found_and_killed(weaker):
    """Needs the helper as the parent of orphans; the fixture of this folder sees whoever survives."""
    weaker("no filters")
    program = (
        "import os, time\nfor _ in range(6):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        if os.fork() == 0:\n            os.setsid()\n        time.sleep(60)\n        os._exit(0)\n"
        "time.sleep(0.1)\n"
    )
    reason = outcome_of(program + WRONG).reason
    if "BlockingIOError" in reason:
        pytest.skip("RLIMIT_NPROC binds this user")
    assert reason == "timed out after 0.7 s"  # they hold the channel open
