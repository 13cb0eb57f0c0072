"""Results that are kept as they come, and sentences on what is missing."""

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
    """All results; the file is written again after each."""

    content: dict[str, Any]
    path: Path | None
    deadline: float
    say: Callable[[str], None] = print
    problems: list[str] = field(default_factory=list)

    def attempt(self, place: dict[str, Any], name: str, work: Callable[[], object]) -> None:
        """Keep what `work` gives, or a sentence on why there is nothing."""
        if time.monotonic() > self.deadline:
            self.problem(f"{name}: left out, the time given was over")
            return
        try:
            place[name] = work()
        except Exception as error:  # a compiler may fail in any way, and what was measured must be kept
            self.problem(f"{name}: {_first_line(error)}")
            gc.collect()
            torch.cuda.empty_cache()
        self.write()

    def problem(self, sentence: str) -> None:
        self.problems.append(sentence)
        self.say(f"problem: {sentence}")

    def write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.result(), indent=2) + "\n", encoding="utf-8")

    def result(self) -> dict[str, Any]:
        """The results with what went wrong."""
        return self.content | {"problems": self.problems}


def _first_line(error: Exception) -> str:
    """What went wrong, on one line; an error may have no message."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def command(what: str, options: Iterable[tuple[str, object]], *, small: bool) -> str:
    """The command line that repeats a run."""
    words = ["unmask", "bench", what]
    for name, value in options:
        words += [f"--{name}", str(value)]
    return shlex.join([*words, *(["--small"] if small else [])])


def some_of(name: str, given: Sequence[str], known: Collection[str]) -> None:
    """Refuse none, and what is not known."""
    unknown = [word for word in given if word not in known]
    if unknown or not given:
        raise ValueError(f"{name} must be some of {', '.join(known)}; got {', '.join(unknown) or 'none'}")
