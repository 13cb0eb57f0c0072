"""Run untrusted programs and report whether they pass their checks.

Each job runs in its own process, forked from a small helper interpreter that has only the standard library:
no site-packages, an empty environment, its own session, a temporary folder, and standard streams that lead
to /dev/null.

Enforced by the kernel, where `isolation()` lists it:

- rlimits bound memory, processor time, file size and open files. The helper watches the wall clock and kills
  the session and every orphaned process.
- seccomp: no sockets, no new processes, no signals to other processes, no tracing, no change of owners,
  modes or times.
- Landlock: no writes outside the folder, reads only from the standard library and the system's libraries
  (so neither /proc nor a home folder), no signals to outside processes. All capabilities are dropped.

Enforced by the interpreter: an audit hook, which Python code cannot remove, denies the same operations with
a clear error. It also denies ctypes, tracing, searches through all objects, and access to the checks' code.

The verdict. A job passes only if a token, drawn for this job, comes back after the last check. While
untrusted code runs, the token and the checks lie on the evaluation stack of one frame: no variable, closure,
module or frame attribute refers to them, and the hook blocks the garbage collector's queries. Output of a
program, even into the channel, is never a verdict. Before the checks run, builtins and common modules are
restored and timers are stopped; a program whose threads still run has failed. If a check compares a result
with a literal, the result must not bring its own comparison: a class with its own `__eq__` fails there.

Not enforced. Program and checks share an interpreter, so a determined attacker can still forge a verdict,
though not leave the process: by forging byte code (`marshal`, `code.replace`), by calling an address through
the bare types that ctypes leaves behind, or through a memory error of the interpreter; by reading the
variables of a running check through its frame; by patching a standard module that the checks use and that is
not in `inside.child.MODULES`; by shadowing a builtin that the checks call (a function may legitimately be
called `sum`); by a false `__eq__` where a check compares with a name or with the result of a call. Without
Landlock and seccomp (macOS, old kernels) only the rlimits and the audit hook protect. Memory is bounded per
job: each worker may use that much.

Not available to honest programs: ctypes, subprocesses, multiprocessing, sockets and installed packages.
"""

from unmask.sandbox.jobs import Job, Limits, Outcome
from unmask.sandbox.run import isolation, run_jobs

__all__ = ["Job", "Limits", "Outcome", "isolation", "run_jobs"]
