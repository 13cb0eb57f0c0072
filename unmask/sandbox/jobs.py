"""What is run, within which limits, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from unmask.errors import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one job may use; it may start threads, which these limits count together, but no process."""

    seconds: float = 3.0  # on the wall
    cpu_seconds: int = 4  # of all threads
    memory_bytes: int = 1 << 29  # of address space, the interpreter's own 50 MB or so included
    file_bytes: int = 1 << 20  # of each file, all of them in the job's folder; 0: none may be written
    open_files: int = 64  # at once; also the number of times that a file may be opened for writing

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
    "memory_bytes": 1 << 27,  # less, and the interpreter itself has no room
    "file_bytes": 0,
    "open_files": 8,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A program, and statements that must run after it in the same namespace without raising."""

    program: str
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether every check ran without raising, and in a few words why not."""

    passed: bool
    reason: str
