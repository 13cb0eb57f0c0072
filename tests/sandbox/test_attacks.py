"""Programs that cheat or do harm: each fails, its neighbour passes, and nothing is left of it."""

from __future__ import annotations

import os
import sys
from functools import cache

import pytest

from tests.sandbox import attacks
from tests.sandbox.attacks import WRONG
from unmask.sandbox import Job, Limits, Outcome, run_jobs

HONEST = Job("def f(x):\n    return x + 1", ("assert f(1) == 2",))
CHECKS = ("import math", "assert f(1) == 2", "assert math.isclose(f(2), 3)", "assert f(3) == 4")
SHORT = Limits(seconds=2)  # enough for the honest program on a busy machine
linux = pytest.mark.skipif(sys.platform != "linux", reason="held by the Linux kernel")


def attack(program: str, checks: tuple[str, ...] = CHECKS, limits: Limits = SHORT) -> Outcome:
    outcome, neighbour = run_jobs([Job(program, checks), HONEST], limits)
    assert neighbour == Outcome(True, "passed")
    assert not outcome.passed
    return outcome


@cache
def batch(programs: tuple[str, ...], checks: tuple[str, ...] = CHECKS) -> dict[str, Outcome]:
    """Run programs by one helper, each followed by an honest neighbour; return the outcomes that failed."""
    jobs = [job for program in programs for job in (Job(program, checks), HONEST)]
    outcomes = run_jobs(jobs, Limits(seconds=1))
    assert set(outcomes[1::2]) == {Outcome(True, "passed")}
    return {
        program: outcome
        for program, outcome in zip(programs, outcomes[::2], strict=True)
        if not outcome.passed
    }


ENDLESS = {
    "loops": "while True: pass",
    "loops in the function": "def f(x):\n    while True: pass",
    "swallows every exception": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    ),
    "sleeps": "import time; time.sleep(100)",
    "backtracks in a pattern": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "prints": "while True: print('x' * 10000)",
    "computes huge numbers": "x = 3\nwhile True: x = x ** 3 % 10 ** 100000",
    "waits for its input in a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\ntime.sleep(9)"
    ),
    "ignores signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass"
    ),
}


@pytest.mark.parametrize("program", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_program_without_an_end_is_stopped(program):
    assert attack(program).reason == "timed out after 2 s"


def test_a_program_that_closes_its_channel_and_loops_is_stopped_before_its_time_is_over():
    outcome = attack("import os; os.closerange(0, 99)\nwhile True: pass", limits=Limits(seconds=20))
    assert outcome.reason == "exited before the tests ended"


def test_processor_time_ends_a_program_before_the_clock_does():
    outcome = attack("while True: pass", limits=Limits(seconds=20, cpu_seconds=1))
    assert outcome.reason == "timed out after 1 s of processor time"


HUNGRY = {
    "a list": "x = [0] * 10 ** 9",
    "a list that grows": "x = []\nwhile True: x.append('y' * 10 ** 6)",
    "a string": "x = 'y'\nwhile True: x += x",
    "a number": "x = 1 << 10 ** 11",
}


@pytest.mark.parametrize("program", HUNGRY.values(), ids=HUNGRY.keys())
def test_memory_without_an_end_is_refused(program):
    assert attack(program, limits=Limits(seconds=20)).reason == "memory: more than 512 MiB"


@pytest.mark.parametrize(
    "program",
    [
        "def g(n): return g(n + 1)\ng(0)",
        "import sys; sys.setrecursionlimit(10 ** 9)\ndef g(n): return g(n + 1)\ng(0)",
        "import sys; sys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\nrepr(x)",
        "(" * 10000 + ")" * 10000,
        "x = " + "-" * 100000 + "1",
    ],
    ids=["plain", "without a limit", "in the interpreter", "in brackets", "in signs"],
)
def test_recursion_without_an_end_harms_nobody(program):
    attack(program)


EARLY = {
    "exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "exit in the function": "def f(x): raise SystemExit(0)",
    "os._exit in the function": "import os\ndef f(x): os._exit(0)",
    "exit from a thread": (
        "import threading, os\nthreading.Thread(target=os._exit, args=(0,)).start()\ninput()"
    ),
}


@pytest.mark.parametrize("program", EARLY.values(), ids=EARLY.keys())
def test_leaving_before_the_checks_end_is_a_failure(program):
    outcome = batch(tuple(EARLY.values()))[program]
    assert outcome.reason in ("exited before the tests ended", "failed: EOFError (the program)")


RAISING = {
    where.format(f"raise {error}"): error
    for error in ("KeyboardInterrupt", "GeneratorExit", "StopIteration", "BaseException")
    for where in ("{}", "def f(x): {}")
}


@pytest.mark.parametrize("program", RAISING)
def test_any_exception_is_a_failure(program):
    assert batch(tuple(RAISING))[program].reason.startswith(f"failed: {RAISING[program]}")


PROCESSES = {
    "fork": "import os; os.fork()",
    "fork bomb": (
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n"
        "    except PermissionError: break\n"
    ),
    "vfork and exec": "import _posixsubprocess, subprocess; subprocess.run(['/bin/true'])",
    "system": "import os\nif os.system('true') != 0: raise OSError",
    "posix_spawn": "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "multiprocessing": ("import multiprocessing as m\nm.get_context('fork').Process(target=print).start()"),
}


@pytest.mark.parametrize("program", PROCESSES.values(), ids=PROCESSES.keys())
def test_no_process_can_be_started(program):
    assert WRONG + program in batch(tuple(WRONG + one for one in PROCESSES.values()))


def test_threads_without_end_harm_nobody():
    attack(
        "import threading, time\nthreading.stack_size(1 << 16)\n"
        "while True:\n    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    )


KILLS = {
    "its parent": "os.kill(os.getppid(), 9)",
    "its group": "os.killpg(0, 9)",
    "its parent's group": "os.killpg(os.getpgid(os.getppid()), 9)",
    "everybody": "os.kill(-1, 9)",
    "by a pidfd": "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
    "by an owned pipe": (
        "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 8, os.getppid()); fcntl.fcntl(r, 10, 9)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); os.write(w, b'x')"
    ),
    "by lower limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))",
    "by a lower priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
}


@linux
@pytest.mark.parametrize("call", KILLS.values(), ids=KILLS.keys())
def test_nobody_else_can_be_signalled_or_slowed(call):
    programs = {one: f"import os, signal, resource\n{one}\n" + WRONG for one in KILLS.values()}
    assert "PermissionError" in batch(tuple(programs.values()))[programs[call]].reason


NETWORK = {
    "tcp": "socket.socket().connect(('127.0.0.1', 9))",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "unix": "socket.socket(socket.AF_UNIX).connect('/tmp/x')",
    "by a pair": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '/tmp/x')",
    "below the hook": "import _socket; _socket.socket(_socket.AF_INET)",
    "a request": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
}


@linux
@pytest.mark.parametrize("call", NETWORK.values(), ids=NETWORK.keys())
def test_there_is_no_network(call):
    programs = {one: f"import socket\n{one}\n" + WRONG for one in NETWORK.values()}
    reason = batch(tuple(programs.values()))[programs[call]].reason
    assert "PermissionError" in reason or "Operation not permitted" in reason


FILES = {
    "writes": "open({path!r}, 'w').write('x')",
    "appends": "open({path!r}, 'a').write('x')",
    "writes by number": "os.write(os.open({path!r}, os.O_WRONLY), b'x')",
    "truncates": "os.truncate({path!r}, 0)",
    "deletes": "os.remove({path!r})",
    "renames": "os.rename({path!r}, {path!r} + 'x')",
    "links": "os.link({path!r}, 'mine'); open('mine', 'w').write('x')",
    "links by name": "os.symlink({path!r}, 'mine'); open('mine', 'w').write('x')",
    "changes its mode": "os.chmod({path!r}, 0)",
    "changes its times": "os.utime({path!r}, (0, 0))",
    "makes a folder beside it": "os.mkdir({path!r} + '.d')",
    "removes the tree": "import shutil; shutil.rmtree(os.path.dirname({path!r}))",
    "by a folder's number": (
        "folder, name = os.path.split({path!r})\nos.open(name, os.O_RDWR, dir_fd=os.open(folder, 0))"
    ),
    "makes a pipe beside it": "os.mkfifo({path!r} + '.p')",
    "by a database": "import sqlite3; sqlite3.connect({path!r}).execute('create table t (x)')",
}


@pytest.fixture(scope="module")
def precious(tmp_path_factory):
    """Run every attack on a file of its own; return the attacks' files and outcomes."""
    paths = {call: tmp_path_factory.mktemp("outside") / "precious" for call in FILES.values()}
    for path in paths.values():
        path.write_text("text")
        os.utime(path, (1, 1))
    programs = {
        call: "import os\n" + call.format(path=str(path)) + "\n" + WRONG for call, path in paths.items()
    }
    outcomes = batch(tuple(programs.values()))
    return {call: (paths[call], outcomes[programs[call]]) for call in paths}


@linux
@pytest.mark.parametrize("call", FILES.values(), ids=FILES.keys())
def test_nothing_outside_its_folder_can_be_changed(call, precious):
    path, outcome = precious[call]
    assert "AssertionError" not in outcome.reason  # the attack itself failed
    assert path.read_text() == "text"
    assert (path.stat().st_mode & 0o200, path.stat().st_mtime) == (0o200, 1)
    assert list(path.parent.iterdir()) == [path]


READ = [__file__, "/etc/passwd", "/proc/self/mem", "/proc/self/environ"]


@linux
@pytest.mark.parametrize("path", READ)
def test_files_outside_the_libraries_cannot_be_read(path):
    programs = {one: f"open({one!r}, 'rb').read(1)\n" + WRONG for one in READ}
    reason = batch(tuple(programs.values()))[programs[path]].reason
    assert "PermissionError" in reason or "FileNotFoundError" in reason


ENDLESS_FILES = {
    **attacks.FILLS,
    "one long file": "with open('x', 'w') as file:\n    while True: file.write('x' * 10000)",
    "many open files": "held = []\nwhile True: held.append(open('/dev/null'))",
}


@pytest.mark.parametrize("program", ENDLESS_FILES.values(), ids=ENDLESS_FILES.keys())
def test_files_without_an_end_are_refused(program):
    assert "timed out" not in attack(program, limits=Limits(seconds=20)).reason


FORGERIES = {
    "prints a verdict": "print('passed'); import sys; sys.stderr.write('passed')",
    "writes to every channel": (
        "import os\nfor fd in range(64):\n    try: os.write(fd, b'passed')\n    except OSError: pass"
    ),
    "closes every channel": "import os; os.closerange(0, 64)",
    "reads the job again": (
        "import os\nfor fd in range(64):\n    try: os.write(3, os.read(fd, 999))\n    except OSError: pass"
    ),
    "patches builtins": (
        "import builtins\nclass Quiet(Exception): pass\nbuiltins.AssertionError = Quiet\n"
        "builtins.exec = builtins.compile = builtins.abs = lambda *a, **k: 2\n__builtins__ = {}"
    ),
    "patches math": (
        "import math; math.isclose = lambda *a, **k: True\ndef f(x): return {1: 2, 3: 4}.get(x, 0)"
    ),
    "swaps math": (
        "import sys, types; fake = types.ModuleType('math'); fake.isclose = lambda *a: True\n"
        "sys.modules['math'] = fake\ndef f(x): return {1: 2, 3: 4}.get(x, 0)"
    ),
    "patches os": "import os; os.write = os._exit = lambda *a: 0",
    "finds tracebacks' frames": (
        "def f(x):\n    try: 1 / 0\n    except ZeroDivisionError as e: frame = e.__traceback__.tb_frame\n"
        "    while frame.f_back is not None:\n        frame = frame.f_back\n"
        "        for value in list(frame.f_locals.values()):\n"
        "            if isinstance(value, (list, tuple)):\n"
        "                for step in value:\n                    if callable(step): step()\n"
        "    return 0"
    ),
    "reads the answer from the check": (
        "def f(x):\n    try: 1 / 0\n"
        "    except ZeroDivisionError as e: frame = e.__traceback__.tb_frame.f_back\n"
        "    while 'check' not in frame.f_code.co_filename: frame = frame.f_back\n"
        "    return [c for c in frame.f_code.co_consts if isinstance(c, int)][-1]"
    ),
    "asks for frames": "import sys\ndef f(x): return sys._getframe(1).f_code.co_consts[1]",
    "asks for all frames": "import sys\ndef f(x): return sys._current_frames()",
    "searches all objects": (
        "import gc\ndef f(x):\n    for o in gc.get_objects():\n"
        "        if type(o).__name__ == 'partial' and o.args[:1] == (3,): o()\n    return 0"
    ),
    "searches from a frame": "import gc\ndef f(x): return gc.get_referents(*gc.get_referrers(f))",
    "traces": "import sys\nsys.settrace(lambda *a: None)",
    "profiles": "import sys\nsys.setprofile(lambda *a: None)",
    "adds a hook": "import sys\nsys.addaudithook(print)",
    "imports ctypes": "import ctypes; ctypes.CDLL(None)._exit(0)",
    "imports _ctypes": "import _ctypes",
    "finds ctypes among the classes": (
        "[c] = [c for c in object.__subclasses__() if c.__name__ == 'CDLL']\nc(None)._exit(0)"
    ),
    "reads its memory": "open('/proc/self/mem', 'rb').read(1)",
    "leaves at the end": "import atexit, os\natexit.register(os.write, 3, b'passed')",
    "sets a timer": (
        "import signal\ndef h(s, frame):\n"
        "    while frame:\n        frame.f_globals.clear(); frame = frame.f_back\n"
        "signal.signal(signal.SIGALRM, h); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)"
    ),
    "hooks the collector": "import gc\ngc.callbacks.append(lambda *a: globals().update(f=lambda x: x + 1))",
    "returns what equals all": "class A:\n    def __eq__(s, o): return True\ndef f(x): return A()",
    "returns one by a lambda": "class A:\n    __eq__ = lambda s, o: True\ndef f(x): return A()",
    "returns a number that lies": "class A(int):\n    __eq__ = lambda s, o: True\ndef f(x): return A()",
    "returns a number that inverts": "class A(int):\n    __eq__ = int.__ne__\ndef f(x): return A()",
    "returns mock.ANY": "from unittest.mock import ANY\ndef f(x): return ANY",
    "has a metaclass that lies": (
        "class M(type):\n    __hash__ = lambda c: hash(int)\n    __eq__ = lambda c, o: True\n"
        "class A(metaclass=M):\n    __eq__ = lambda s, o: True\ndef f(x): return A()"
    ),
    "executes its class elsewhere": (
        "space = {}\nexec('class A:\\n    def __eq__(s, o): return True', space)\n"
        "def f(x): return space['A']()"
    ),
    "shadows a builtin": "def abs(x): return 0\ndef f(x): return {1: 2, 3: 4}.get(x, 0)",
    "leaves a thread that swaps the checks": (
        "import threading\ndef swap():\n    while 'check' not in globals(): pass\n"
        "    globals()['check'] = lambda g: None\nthreading.Thread(target=swap, daemon=True).start()\n"
    ),
    **attacks.SEARCHES,
    **attacks.VOICES,
}
DECISIVE = (*CHECKS, "assert abs(f(2) - 3) < 1", "def check(g): assert g(1) == 2", "check(f)")


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES.keys())
def test_no_trick_wins_a_verdict(program):
    programs = {one: one if "def f" in one else WRONG + one for one in FORGERIES.values()}
    assert programs[program] in batch(tuple(programs.values()), DECISIVE)


@pytest.mark.parametrize("lie", attacks.LIES.values(), ids=attacks.LIES.keys())
@pytest.mark.parametrize(
    "checks",
    [attacks.CHECKS, ("two = 2\nassert f(1) == two",), ("assert f(1) in (2, 3)",), ("assert not f(1) != 2",)],
    ids=["with a literal", "with a name", "in a tuple", "not unequal"],
)
def test_no_lie_wins_a_verdict(lie, checks):
    assert lie in batch(tuple(attacks.LIES.values()), checks)


@linux
@pytest.mark.parametrize("program", attacks.NATIVE.values(), ids=attacks.NATIVE.keys())
def test_native_code_gets_no_further(program):
    assert program in batch(tuple(attacks.NATIVE.values()), attacks.CHECKS)


@pytest.mark.parametrize(
    "check",
    [
        "assert f(1) == [2, 3]",
        "assert [2, 3] == f(1)",
        "assert f(1) in ([2, 3], 4)",
        "def check(g):\n    assert g(1) == [2, 3]\ncheck(f)",
        "assert abs(f(1) - 2.5) < 1e-6",
        "assert all(f(n) == 2 for n in range(3))",
    ],
)
@pytest.mark.parametrize("result", ["A()", "[A(), A()]", "B([A()])"])
def test_a_result_cannot_decide_how_it_is_compared_with_a_literal(check, result):
    lies = "".join(f"    __{n}__ = lambda *a: True\n" for n in ("eq", "ne", "lt", "sub", "rsub", "abs"))
    programs = {
        one: f"class A:\n{lies}class B(list):\n{lies}def f(x):\n    return {one}"
        for one in ("A()", "[A(), A()]", "B([A()])")
    }
    assert programs[result] in batch(tuple(programs.values()), (check,))


def test_patched_assert_methods_are_not_the_checks():
    checks = (
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 2)",
        "assert unittest.TextTestRunner().run(T('test')).wasSuccessful()",
    )
    assert run_jobs([Job(HONEST.program, checks)])[0].passed
    attack("import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n" + WRONG, checks)


def test_a_class_decides_how_its_own_objects_compare():
    """The one comparison that is left to the program; docs/security.md names it."""
    program = "class A:\n    __eq__ = lambda *a: True\ndef f(x): return A()"
    assert run_jobs([Job(program, ("assert f(1) == A()",))])[0].passed
