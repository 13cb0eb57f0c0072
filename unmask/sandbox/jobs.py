"""A job, its limits and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from unmask.errors import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resources of one program. It may start threads, which share these limits, but no processes."""

    seconds: float = 3.0  # wall-clock time
    cpu_seconds: int = 4  # processor time of all threads
    memory_bytes: int = 1 << 29  # address space, including about 50 MB for the interpreter
    file_bytes: int = 1 << 20  # size of each file in the job's folder; 0: no writing
    disk_bytes: int = 1 << 24  # size of all files together, checked every 50 ms
    open_files: int = 64  # at the same time

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            lowest = LOWEST[field.name]
            kinds: tuple[type, ...] = (int, float) if field.name == "seconds" else (int,)
            known = isinstance(value, kinds) and not isinstance(value, bool)
            if not known or not lowest <= value <= HIGHEST:
                what = "a number" if float in kinds else "a whole number"
                raise FieldError(field.name, value, f"must be {what} from {lowest} to {HIGHEST}")


HIGHEST = 1 << 60
LOWEST: dict[str, float] = {
    "seconds": 0.01,
    "cpu_seconds": 1,
    "memory_bytes": 1 << 27,  # with less, the interpreter itself does not start
    "file_bytes": 0,
    "disk_bytes": 0,
    "open_files": 8,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A program, and checks: statements that must run without raising.

    The checks run in another process. A name that they use but do not define is taken from the program.
    `helpers` are statements that define more names for the checks. Arguments and results cross as plain data.
    """

    program: str
    checks: tuple[str, ...]
    helpers: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether all checks passed, and a short reason if not."""

    passed: bool
    reason: str
