"""Run untrusted programs and report whether they pass their checks. See docs/security.md.

Each job has two processes. The program runs in one of them, without rights: `isolation()` lists what a job
itself saw denied. The checks run in the other. They share a pair of pipes, no memory, files or descriptors.
A check calls the program's functions through the pipes. Arguments and results cross as plain data and are
decoded into fresh objects, so the program has nothing to lie with. An object of a class of its own stays in
the program's process: the checks can call it and read it, and compare it with others of its kind, but not
with plain data.
"""

from unmask.sandbox.isolation import Isolation, Unprotected, allow_unsafe_code
from unmask.sandbox.jobs import Job, Limits, Outcome
from unmask.sandbox.run import isolation, require_isolation, run_jobs

__all__ = [
    "Isolation",
    "Job",
    "Limits",
    "Outcome",
    "Unprotected",
    "allow_unsafe_code",
    "isolation",
    "require_isolation",
    "run_jobs",
]
