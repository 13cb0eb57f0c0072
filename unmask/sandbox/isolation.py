"""What isolates the programs, and the user's permission to run them without isolation."""

from __future__ import annotations

import os
from dataclasses import dataclass

UNSAFE = "UNMASK_UNSAFE_CODE"  # an environment variable, so it can be passed on to the workers of a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The layers around a program, and what a job itself saw denied or allowed."""

    layers: tuple[str, ...]
    denied: tuple[str, ...]
    allowed: tuple[str, ...]  # should have been denied; if there are any, programs are not isolated

    def __str__(self) -> str:
        weak = f"; NOT DENIED: {', '.join(self.allowed)}" if self.allowed else ""
        return f"{', '.join(self.layers)}; denied: {', '.join(self.denied) or 'nothing'}{weak}"


class Unprotected(ValueError):
    """This machine cannot isolate generated programs."""

    def __init__(self, isolation: Isolation) -> None:
        super().__init__(
            "generated programs would run without isolation here, because nothing denies them "
            f"{', '.join(isolation.allowed)}; use Linux 5.13 or later with seccomp and Landlock, "
            f"or install bubblewrap, or run them all the same with --unsafe-code or {UNSAFE}=1"
        )
        self.isolation = isolation

    def __reduce__(self) -> tuple[type[Unprotected], tuple[Isolation]]:
        return type(self), (self.isolation,)  # so that a worker can send the error


def unsafe_code() -> bool:
    """Return whether the user allows programs to run without isolation."""
    return os.environ.get(UNSAFE, "") == "1"


def allow_unsafe_code() -> None:
    """Let programs run without isolation, in this process and in those it starts."""
    os.environ[UNSAFE] = "1"
