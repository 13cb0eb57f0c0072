"""Attacks that once won a verdict or did harm. Each program answers wrongly, so it passes only by forging."""

from __future__ import annotations

WRONG = "def f(x):\n    return 0\n"  # fails CHECKS unless an attack works
CHECKS = ("assert f(1) == 2", "assert f(3) == 4")

LIAR = "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
FRAME = (
    "    try: 1 / 0\n    except ZeroDivisionError as e: frame = e.__traceback__.tb_frame\n"
    "    while frame := frame.f_back:\n"
)
# each returns something that lies when a check looks at it
LIES = {
    "a weak proxy": LIAR + "import weakref\nkept = E()\ndef f(x): return weakref.proxy(kept)",
    "a mapping proxy": LIAR + "import types\nE.keys = E.__getitem__ = None\n"
    "def f(x): return types.MappingProxyType(E())",
    "typing.cast as its comparison": "import typing\nclass E: __eq__ = typing.cast\ndef f(x): return E()",
    "a user list": (
        "import collections\nclass L(collections.UserList):\n    def __eq__(s, o): return True\n"
        "def f(x): return L()"
    ),
    "a user list with lying data": (
        LIAR + "import collections\ndef f(x):\n    u = collections.UserList()\n    u.data = E()\n    return u"
    ),
    "a partial": (
        "import functools, operator\nclass E: __eq__ = functools.partial(operator.is_, None, None)\n"
        "def f(x): return E()"
    ),
    "a number": (
        "class A(float):\n    __eq__ = __le__ = __ge__ = lambda s, o: True\n    __sub__ = lambda s, o: 0.0\n"
        "def f(x): return A()"
    ),
    "a generator": LIAR + "def f(x):\n    yield E()",
    "a class": "class M(type):\n    __eq__ = lambda c, o: True\nclass A(metaclass=M): pass\n"
    "def f(x): return A",
    "a list of liars": LIAR + "def f(x): return [E()]",
}

# each looks for the checks, or for the code that judges
SEARCHES = {
    "the constants of the frames above": (
        "def f(x):\n" + FRAME + "        for c in frame.f_code.co_consts:\n"
        "            if isinstance(c, int) and c == x + 1: return c\n"
        "    return 0"
    ),
    "the globals of the frames above": (
        "def f(x):\n" + FRAME + "        frame.f_globals['f'] = lambda x: x + 1\n    return 0"
    ),
    "frames, from a property that a hook reads": (
        "import sys\nclass P:\n    @property\n    def f_code(s):\n        frame = s.frame\n"
        "        while frame := frame.f_back: s.seen.extend(frame.f_code.co_consts)\n"
        "def f(x):\n    p = P(); p.seen = []\n    try: 1 / 0\n"
        "    except ZeroDivisionError as e: p.frame = e.__traceback__.tb_frame\n"
        "    sys.audit('object.__getattr__', p, 'f_code')\n    p.seen or p.f_code\n"
        "    return next((c for c in p.seen if type(c) is int and c == x + 1), 0)"
    ),
    "all objects": (
        "import gc\nword = ''.join(['ass', 'ert f('])\ndef texts(o):\n"
        "    return o.values() if type(o) is dict else o if type(o) in (list, tuple) else ()\n"
        "def f(x):\n    seen = [t for o in gc.get_objects() for t in texts(o) if type(t) is str and word "
        "in t and word != t]\n"
        "    return x + 1 if seen else 0"
    ),
    "every descriptor": (
        "import os\ndef f(x):\n    for fd in range(64):\n        try:\n"
        "            os.set_blocking(fd, False)\n"
        "            if b'assert' in os.read(fd, 1 << 20): return x + 1\n        except OSError: pass\n"
        "    return 0"
    ),
    "the memory of its parent": (
        "import os\ndef f(x):\n    with open(f'/proc/{os.getppid()}/mem', 'rb') as m: m.read(1)\n"
        "    return x + 1"
    ),
}

# each speaks to the checks in the program's stead
VOICES = {
    "bytes that mean nothing": "import os\nos.write(4, b'x' * 100)",
    "a verdict": "import os\nos.write(4, b'{\"passed\": true}')",
    "a length without end": "import os\nos.write(4, b'\\xff' * 4)",
    "lists without end": "import os\nos.write(4, b'\\x09\\0\\0\\0l' + b'\\xff' * 4 + b'l' * 4)",
    "a very long first answer": (
        "import os, struct\nn = 1 << 20\nm = b't\\x03\\0\\0\\0s\\x08\\0\\0\\0returned'\n"
        "m += b't' + bytes(4) + b's' + struct.pack('<I', n) + b'x' * n\n"
        "m = struct.pack('<I', len(m)) + m\nwhile m: m = m[os.write(4, m):]"
    ),
    "an exception with a very long name": ("def f(x): raise type('E' * (1 << 20), (Exception,), {})\n"),
    "an exception with very long words": "def f(x): raise ValueError('x' * (1 << 22))",
    "names of classes without end": (
        "kind = Exception\nfor _ in range(400): kind = type('E', (kind,), {})\ndef f(x): raise kind"
    ),
    "silence": "import os\nos.close(4)",
    "deafness": "import os\nos.close(3)",
}

# each gets further than a program may, and answers rightly if it does
CTYPES = """
class S(str):
    def rpartition(s, *a): return '', '', 'math'
    __str__ = lambda s: 'math'
    __hash__ = str.__hash__
import importlib, sys
def load():
    try: return importlib.import_module(S('_ctypes'))
    except Exception: pass
    import importlib.util, _imp
    return _imp.create_dynamic(importlib.util.find_spec('_ctypes'))
"""
LIBC = CTYPES + (
    "try: import ctypes\nexcept Exception: sys.modules['_ctypes'] = load(); import ctypes\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
)
DENIED = "def f(x): return 0 if result < 0 and ctypes.get_errno() == 1 else x + 1\n"
NATIVE = {
    "a library that it wrote": (
        "import sys, os, importlib.machinery, importlib.util\n"
        "from importlib.machinery import ExtensionFileLoader, ModuleSpec\n"
        "folder = next(p for p in sys.path if p.endswith('lib-dynload'))\n"
        "name = next(n for n in os.listdir(folder) if n.startswith(('_testimport', 'xxlimited', '_crypt', "
        "'_dbm')))\n"
        "with open(f'{folder}/{name}', 'rb') as old, open('mine.so', 'wb') as new: new.write(old.read())\n"
        "loader = ExtensionFileLoader(name.split('.')[0], os.path.abspath('mine.so'))\n"
        "loader.create_module(ModuleSpec(loader.name, loader, origin=loader.path))\ndef f(x): return x + 1"
    ),
    "new code in memory": (
        "import mmap\nmmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n"
        "def f(x): return x + 1"
    ),
    "mprotect": LIBC
    + "b = ctypes.create_string_buffer(8192)\na = (ctypes.addressof(b) + 4095) // 4096 * 4096\n"
    "result = libc.mprotect(ctypes.c_void_p(a), 4096, 5)\n" + DENIED,
    "outliving its parent": LIBC + "result = libc.prctl(1, 0, 0, 0, 0)\n" + DENIED,
    **{
        f"{call}": f"{LIBC}result = libc.{call}\n{DENIED}"
        for call in (
            *("shmget(0, 4096, 0o1600)", "shmat(0, None, 0)", "shmctl(0, 0, None)", "semget(0, 1, 0o1600)"),
            *("semctl(0, 0, 0)", "msgget(0, 0o1600)", "msgctl(0, 0, None)", "ptrace(16, 1, None, None)"),
            *("fork()", "kill(1, 0)", "socket(2, 1, 0)", "setsid()"),
        )
    },
}

FILLS = {
    "one database": (
        "import sqlite3, os\nc = sqlite3.connect('x')\nc.execute('pragma journal_mode = off')\n"
        "c.execute('create table t (b)')\n"
        "for _ in range(200):\n    c.execute('insert into t values (zeroblob(1000000))'); c.commit()\n"
    ),
    "many databases": (
        "import sqlite3, os\nc = sqlite3.connect(':memory:', isolation_level=None)\n"
        "for n in range(10 ** 6):\n"
        "    c.execute(f\"attach 'd{n}' as d\")\n    c.execute('pragma d.journal_mode = off')\n"
        "    c.execute('create table d.t (b)')\n    c.execute('insert into d.t values (zeroblob(900000))')\n"
        "    c.execute('detach d')\n"
    ),
    "many files": "number = 0\nwhile True:\n    open(str(number), 'w').write('x'); number += 1",
    "many folders": "import os\nnumber = 0\nwhile True:\n    os.mkdir(str(number)); number += 1",
    "folders in folders": "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
}
LITTER = (  # hard to remove
    "import os\nfor _ in range(60):\n    os.mkdir('d'); os.mkdir('e', 0); os.chdir('d')\n"
    "os.chmod = os.rmdir = None\ndef f(x): return 0"
)
