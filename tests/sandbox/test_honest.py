"""Programs that mean well pass, whoever runs beside them."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raises import raises_field
from unmask.sandbox import Job, Limits, Outcome, run_jobs

PASSED = Outcome(True, "passed")

PROGRAMS = {
    "prints": ("def f(x):\n    print('hello', x)\n    return x", "assert f(1) == 1"),
    "imports": (
        (
            "import math, re, collections, heapq, sys, typing, itertools, hashlib, functools, bisect\n"
            "import string, json, random, datetime, decimal, fractions, statistics, copy, operator, enum\n"
            "import dataclasses, queue, zlib, base64, struct, array, textwrap, calendar, uuid, inspect\n"
            "import contextlib, abc, io, time, tempfile, warnings\n"
            "import logging, traceback, threading, subprocess, asyncio, unittest, pickle, csv\n"
            "def f(s): return hashlib.md5(s.encode()).hexdigest()[:4]"
        ),
        "assert f('a') == '0cc1'",
    ),
    "recursion": ("def f(n): return 1 if n == 0 else n * f(n - 1)", "assert f(900) % 10 == 0"),
    "deeper recursion": (
        "import sys\nsys.setrecursionlimit(5000)\ndef f(n): return n and 1 + f(n - 1)",
        "assert f(3000) == 3000",
    ),
    "classes": (
        (
            "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o.x\n"
            "def f(x): return P(x)"
        ),
        "assert f(1) == P(1) and f(1) != P(2)",
    ),
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int = 0\nf = P",
        "assert f(1) < f(2)\nassert f(1).x == 1",
    ),
    "an enum and a named tuple": (
        (
            "import enum, typing, collections\nclass E(enum.IntEnum):\n    A = 1\n"
            "class N(typing.NamedTuple):\n    a: int\nM = collections.namedtuple('M', 'a b')"
        ),
        "assert E.A == 1 and N(2) == (2,) and M(1, 2) == (1, 2)",
    ),
    "results of the standard library": (
        (
            "from collections import *\nfrom fractions import Fraction\nfrom decimal import Decimal\n"
            "def f(x):\n    d = defaultdict(int, b=2)\n"
            "    return [Counter(x), OrderedDict(a=1), d, deque([1]), Fraction(1, 2)]"
        ),
        (
            "assert f('aa')[0] == {'a': 2}\nassert f('')[1:3] == [{'a': 1}, {'b': 2}]\n"
            "assert f('')[4] == 0.5\n"
            "assert Decimal('1.5') == 1.5 and list(f('')[3]) == [1]"
        ),
    ),
    "generators": ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
    "coroutines": (
        "import asyncio\nasync def g(x):\n    await asyncio.sleep(0)\n    return x",
        "assert asyncio.run(g(4)) == 4",
    ),
    "threads that end": (
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def f(n):\n    with ThreadPoolExecutor(4) as pool: return list(pool.map(abs, range(-n, 0)))"
        ),
        "assert f(3) == [3, 2, 1]",
    ),
    "50 MB": ("def f(n):\n    return len(bytearray(n * 10 ** 6))", "assert f(50) == 50_000_000"),
    "a message": ("def f(x): return x", "assert f(1) == 1, 'the message'"),
    "a main block": (
        "def f(x): return x\nif __name__ == '__main__':\n    raise SystemExit(f(int(input())))",
        "assert f(1) == 1",
    ),
    "a test function": (
        "def f(x): return x * 2",
        (
            "def check(candidate):\n    for n in range(5):\n        assert candidate(n) == 2 * n, 'n'\n"
            "    assert abs(candidate(0.5) - 1.0) < 1e-9\n\ncheck(f)"
        ),
    ),
    "a name of the language": ("def sum(a, b): return a + b", "assert sum(10, 15) == 25"),
    "changes in place": ("def f(x): x.append(1)", "x = []\nf(x)\nassert x == [1]"),
    "changes inside": (
        (
            "def f(rows, index, names, raw):\n"
            "    rows[0].sort(); rows.append({1}); del index['a']; names.add('b')\n"
            "    raw[0] = 7\n    return rows"
        ),
        (
            "inner, index, names, raw = [3, 1], {'a': 1, 'b': {}}, {'a'}, bytearray(b'xy')\n"
            "rows = [inner, inner]\n"
            "result = f(rows, index, names=names, raw=raw)\n"
            "assert result is rows and rows == [[1, 3], [1, 3], {1}] and rows[0] is inner is rows[1]\n"
            "assert index == {'b': {}} and names == {'a', 'b'} and raw == b'\\x07y'"
        ),
    ),
    "changes before it fails": (
        "def f(x):\n    x.clear()\n    raise KeyError('k')",
        "x = [1]\ntry: f(x)\nexcept KeyError as e: assert e.args == ('k',)\nassert x == []",
    ),
    "containers that hold themselves": (
        "def f(x):\n    y = [x]\n    y.append(y)\n    return y",
        "y = f(1)\nassert y[0] == 1 and y[1] is y",
    ),
    "numbers of all kinds": (
        "def f(x): return x",
        (
            "import math\nfor x in (0, -1, 1 << 3000, 0.1, -0.0, 1e308, 1j, True, None, float('inf')):\n"
            "    assert f(x) == x and type(f(x)) is type(x) and str(f(x)) == str(x)\n"
            "assert math.isnan(f(float('nan'))) and abs(f(0.1) + 0.2 - 0.3) < 1e-9"
        ),
    ),
    "data of all kinds": (
        "def f(*x, **y): return x, y",
        (
            "import fractions, decimal, collections\n"
            "x = ['\\ud800', b'\\xff', {1: (2,)}, {3}, frozenset({4}), range(5), fractions.Fraction(1, 3), "
            "[],\n"
            "     decimal.Decimal('0.1'), collections.deque([1], 3)]\n"
            "assert f(*x, y=x) == (tuple(x), {'y': x})"
        ),
    ),
    "a tree of its own class": (
        (
            "class Node:\n    def __init__(self, x): self.x, self.left = x, None\n"
            "def depth(node): return 0 if node is None else 1 + depth(node.left)"
        ),
        (
            "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(3)\nassert depth(root) == 3\n"
            "assert root.left.x == 2"
        ),
    ),
    "an object with a state": (
        (
            "class Stack:\n    def __init__(self): self.items = []\n"
            "    def push(self, x): self.items.append(x)\n"
            "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n"
            "    def __getitem__(self, n): return self.items[n]"
        ),
        "s = Stack()\ns.push(1); s.push([2])\nassert len(s) == 2 and s[0] == 1 and s.pop() == [2] and s\n",
    ),
    "functions that it returns": (
        "def f(x):\n    def g(y): return x + y\n    return g",
        "assert f(1)(2) == 3 and list(map(f(1), [1, 2])) == [2, 3]",
    ),
    "endless generators": (
        "def f(n):\n    while True:\n        yield n\n        n += 1",
        "g = f(3)\nassert next(g) == 3 and [x for x, _ in zip(g, 'ab')] == [4, 5]",
    ),
    "exceptions": (
        (
            "class Bad(ValueError): pass\nclass Worse(Bad): pass\n"
            "def f(x):\n    if x == 1: raise Worse('one')\n"
            "    if x == 2: raise UnicodeDecodeError('a', b'', 0, 1, 'b')\n"
            "    return {}[x]"
        ),
        (
            "for x, kind in ((1, Worse), (1, Bad), (1, ValueError), (2, UnicodeError), (3, KeyError)):\n"
            "    try: f(x)\n    except kind as error: assert x != 1 or str(error) == 'one'\n"
            "    else: assert False"
        ),
    ),
    "a global that changes": ("calls = []\ndef f(x): calls.append(x)", "f(1)\nf(2)"),
    "a module of its own": (
        "import sys\ndef f(x): return sys.getsizeof(x)",
        "assert f((1,)) == sys.getsizeof((1,))",
    ),
    "a thread that does not end": (
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
            "def f(x): return x"
        ),
        "assert f(1) == 1",
    ),
    "files of its own": (
        (
            "import os, tempfile\ndef f(x):\n    with open('a.txt', 'w') as file: file.write(x)\n"
            "    os.mkdir('d'); os.rename('a.txt', 'b.txt')\n"
            "    with open('b.txt') as file: x = file.read()\n    os.remove('b.txt')\n"
            "    return x, os.listdir()"
        ),
        "assert f('text') == ('text', ['d'])",
    ),
    "temporary files": (
        (
            "import tempfile\ndef f(x):\n    with tempfile.NamedTemporaryFile('w+') as file:\n"
            "        file.write(x); file.flush(); file.seek(0)\n        y = open(file.name).read()\n"
            "    with tempfile.TemporaryDirectory() as folder: pass\n"
            "    with tempfile.TemporaryFile('w+') as file:\n        file.write(y); file.seek(0)\n"
            "        return file.read()"
        ),
        "assert f('text') == 'text'",
    ),
    "logs and traces back": (
        (
            "import logging, traceback\ndef f(x):\n    logging.warning('w')\n    try: 1 / 0\n"
            "    except ZeroDivisionError: return traceback.format_exc()"
        ),
        "assert 'ZeroDivisionError' in f(1)",
    ),
    "letters of all kinds": ("def f(x): return x + '\u00e9\u4e2d\U0001f600'", "assert len(f('')) == 3"),
    "an odd escape": ("import re\ndef f(x): return re.sub('\\d', '', x)", "assert f('a1') == 'a'"),
    "annotations of the future": (
        "from __future__ import annotations\ndef f(x: Unknown) -> int: return 1",
        "assert f(1) == 1",
    ),
}


@pytest.mark.parametrize(("program", "check"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_an_honest_program_passes(program, check):
    assert all_outcomes()[program] == PASSED


@cache
def all_outcomes() -> dict[str, Outcome]:
    jobs = [Job(program, (check,)) for program, check in PROGRAMS.values()]
    outcomes = run_jobs(jobs, Limits(seconds=20, cpu_seconds=20))
    return {job.program: outcome for job, outcome in zip(jobs, outcomes, strict=True)}


def test_the_reason_names_the_error_and_the_check():
    jobs = [
        Job("def f(x): return x", ("assert f(1) == 1", "assert f(1) == 2, 'off by one'")),
        Job("x = 1 / 0", ()),
        Job("def f(:", ()),
        Job("def f(x): return x", ("assert f(",)),
        Job("", ("f(1)",)),
    ]
    reasons = [outcome.reason for outcome in run_jobs(jobs)]
    assert reasons[0] == "failed: AssertionError: off by one (check 2)"
    assert reasons[1] == "failed: ZeroDivisionError: division by zero (the program)"
    assert reasons[2].startswith("failed: SyntaxError")
    assert "<check 1>" in reasons[3]
    assert reasons[4] == "failed: NameError: name 'f' is not defined (check 1)"


def test_a_global_is_read_before_every_check():
    program = "calls = []\ndef f(x): calls.append(x)"
    assert run_jobs([Job(program, ("assert calls == []\nf(1)", "assert calls == [1]"))]) == [PASSED]


def test_helpers_are_the_tasks_own():
    program = "def helper(x): return 0\ndef f(x): return 0"
    checks = ("assert helper(f(1)) == 0",)
    assert run_jobs([Job(program, checks)]) == [PASSED]
    assert not run_jobs([Job(program, checks, "def helper(x): return x + 1")])[0].passed


@pytest.mark.parametrize(
    ("program", "check"),
    [
        ("def f(x):\n    for _ in range(300): x = [x]\n    return x", "f(1)"),
        ("def f(x): return 'x' * (1 << 25)", "f(1)"),
        ("def f(x): return x", "f(lambda: 1)"),
        ("def f(x): return object()", "assert f(1) != 2"),
        ("def f(x): return object()", "try: f(1) == 2\nexcept BaseException: pass"),
    ],
    ids=["too deep", "too long", "a function of a check", "an object", "an object, and the check looks away"],
)
def test_data_that_cannot_cross_fails_the_program(program, check):
    assert run_jobs([Job(program, (check,))])[0].reason.startswith("failed: not plain data")


@settings(max_examples=8, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=8))
def test_any_text_gets_an_outcome(programs):
    outcomes = run_jobs([Job(program, ("assert False",)) for program in programs])
    assert [outcome.passed for outcome in outcomes] == [False] * len(programs)


@pytest.mark.parametrize("workers", [1, 3])
def test_verdicts_depend_neither_on_order_nor_on_neighbours(workers):
    kinds = {
        "def f(x): return x": True,
        "import builtins, math; builtins.len = math.sqrt = None\ndef f(x): return 0": False,
        "import os; os._exit(0)": False,
        "x = [0] * 10 ** 9": False,
        "import sys; sys.modules.clear()\ndef f(x): return 0": False,
        "import math\ndef f(x): return int(math.sqrt(x * x)) + len('')": True,
    }
    jobs = [Job(program, ("assert f(2) == 2",)) for program in list(kinds) * 4]
    random.Random(0).shuffle(jobs)
    outcomes = run_jobs(jobs, workers=workers)
    assert [outcome.passed for outcome in outcomes] == [kinds[job.program] for job in jobs]


def test_an_order_of_a_set_is_the_same_in_every_run():
    show = Job("def f(): raise ValueError(str({'a', 'b', 'c', 'd', 'e'}))", ("f()",))
    assert len({run_jobs([show])[0].reason for _ in range(3)}) == 1


def test_a_program_sees_neither_environment_nor_input_nor_packages(monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    program = "import os, sys\ndef f(): return 'SECRET' in os.environ, len(sys.argv), os.listdir('.')"
    missing = "try:\n    import torch\nexcept ImportError:\n    pass\nelse:\n    raise ValueError"
    assert run_jobs([Job(program, ("assert f()[0] is False and f()[2] == []", missing))]) == [PASSED]


def test_a_job_may_be_long():
    program = "x = '" + "y" * 3_000_000 + "'"
    assert run_jobs([Job(program, ("assert len(x) == 3_000_000",))], Limits(seconds=20)) == [PASSED]


def test_a_long_job_that_runs_out_of_time_does_not_disturb_the_next():
    long = Job("while True: pass\n" + "x = 1\n" * 300_000, ())
    short = Job("x = 1", ("assert x == 1",))
    late, passed = run_jobs([long, short], Limits(seconds=0.3))
    assert late.reason == "timed out after 0.3 s"
    assert passed == PASSED


def test_no_jobs_need_no_helper():
    assert run_jobs([]) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seconds", 0),
        ("cpu_seconds", 1.5),
        ("memory_bytes", 1 << 20),
        ("open_files", True),
        ("file_bytes", -1),
    ],
)
def test_a_limit_out_of_range_is_an_error(field, value):
    with raises_field(field, value):
        Limits(**{field: value})


def test_workers_must_be_a_whole_number():
    with raises_field("workers", 0):
        run_jobs([Job("", ())], workers=0)
