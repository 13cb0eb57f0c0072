"""Runs programs that nobody has read, and says whether they pass their checks.

Every job has a process of its own, forked from a small helper interpreter that holds the standard library
and nothing else: no site-packages, an empty environment, its own session, a folder of its own that is
removed, standard streams that lead nowhere.

Held by the kernel, where `isolation()` lists it:

- rlimits bound memory, processor time, file size and open files; the wall clock is kept by the helper,
  which kills the session and every process that came to it as an orphan.
- seccomp: no sockets, no new processes, no signals to others, no tracing, no change of owners, modes or
  times.
- Landlock: no write outside the folder, reads from the standard library and the system's libraries alone
  (so neither /proc nor a home), no signal to a process outside. All capabilities are dropped.

Held by the interpreter: an audit hook, which Python code cannot remove, denies the same things with a clear
error, and with them ctypes, tracing, the search through all objects, and the code of the checks.

The verdict. A job passes only if a token, drawn for the job alone, comes back after the last check. While
foreign code runs, the token and the checks lie on the evaluation stack of one frame: no variable, closure,
module or frame attribute leads there, and the garbage collector is not asked. What a program prints, or
writes into the channel, is never a verdict. Before the checks run, builtins and the common modules are put
back as they were, timers are stopped, and a program whose threads still run has failed. A result that a
check compares with a literal must be compared by the language: a class of the program with an `__eq__` of
its own fails there.

Not held. Program and checks share an interpreter, so somebody determined can still win a verdict, though
not leave the process: by forging byte code (`marshal`, `code.replace`), by calling an address through the
bare types that ctypes leaves behind, or through a memory error of the interpreter; by reading the variables
of a running check through its frame; by patching a standard module that is not in `inside.child.MODULES`
and that the checks use; by shadowing a builtin that the checks call (a function may rightly be called
`sum`); by a lying `__eq__` where a check compares with a name or with the result of a call. Without
Landlock and seccomp (macOS, old kernels) only the rlimits and the audit hook stand in the way. Memory is
bounded per job: each worker may use that much.

What honest programs miss: ctypes, subprocesses, multiprocessing, sockets, and installed packages.
"""

from unmask.sandbox.jobs import Job, Limits, Outcome
from unmask.sandbox.run import isolation, run_jobs

__all__ = ["Job", "Limits", "Outcome", "isolation", "run_jobs"]
