"""Run untrusted programs and report whether they pass their checks. See docs/security.md.

Each job has two processes: one runs the program, without rights, and the other runs the checks.
`isolation()` lists what a job itself saw denied. The two share a pair of pipes, but no memory, files or other
descriptors. A check calls the program's functions through the pipes. Arguments and results cross as plain
data and are decoded into fresh objects, so a result cannot fake equality. An object of a class that the
program defines stays in the program's process. The checks can call it, read it and compare it with other
objects of the program, but not with plain data.
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
