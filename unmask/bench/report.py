"""Collect results and problems, and write them to a file as they come."""

from __future__ import annotations

import gc
import json
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(slots=True)
class Report:
    """The results of a benchmark. The file is rewritten after each result."""

    content: dict[str, Any]
    path: Path | None
    deadline: float  # on the clock of time.monotonic
    log: Callable[[str], None] = print
    problems: list[str] = field(default_factory=list)

    def attempt(self, results: dict[str, Any], name: str, work: Callable[[], object]) -> None:
        """Store the result of `work` under `name`, or record why there is none."""
        if time.monotonic() > self.deadline:
            self.problem(f"{name}: left out, the time given was over")
            return
        try:
            results[name] = work()
        except Exception as error:  # a compiler can raise anything, and earlier results must survive
            self.problem(f"{name}: {_first_line(error)}")
            gc.collect()
            torch.cuda.empty_cache()
        self.write()

    def problem(self, sentence: str) -> None:
        """Record a problem and print it."""
        self.problems.append(sentence)
        self.log(f"problem: {sentence}")

    def draw(self, draw: Callable[[dict[str, Any], Path], None], name: str) -> None:
        """Draw the results into a file in the same folder, or record why there is no figure."""
        if self.path is None:
            return
        try:
            draw(self.content, self.path.with_name(name))
        except ValueError as error:
            self.problem(f"no figure: {error}")

    def write(self) -> None:
        """Write the file, if there is one."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.result(), indent=2) + "\n", encoding="utf-8")

    def result(self) -> dict[str, Any]:
        """Return the results together with the problems."""
        return self.content | {"problems": self.problems}


def _first_line(error: Exception) -> str:
    """Return the type and the first line of an error, whose message may be empty."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def command_line(program: str, options: Iterable[tuple[str, object]], *, small: bool) -> str:
    """Return the command line that repeats a run."""
    words = program.split()
    for name, value in options:
        words += [f"--{name}", str(value)]
    return shlex.join([*words, *(["--small"] if small else [])])


def check_names(field: str, given: Sequence[str], known: Collection[str]) -> None:
    """Raise if a name is unknown, or if there is none."""
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise ValueError(f"{field} must be some of {', '.join(known)}; got {', '.join(unknown) or 'none'}")
