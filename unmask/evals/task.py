"""The parts of a benchmark: samples, and a function that judges texts. Knows no particular benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from unmask.text.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a benchmark; all its values are JSON."""

    id: str  # the same in every run: "gsm8k/17", "HumanEval/3"
    prompt: Prompt  # a chat, or raw text where the protocol uses no chat template
    gold: Any
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a text is right, and the answer that was read from it."""

    correct: bool
    extracted: str | None
    also: Mapping[str, bool] = field(default_factory=dict)  # the same text under other scorings


Load: TypeAlias = Callable[[Path | None], Sequence[Sample]]  # from a local folder, or from the hub if None
Score: TypeAlias = Callable[[Sequence[Sample], Sequence[str]], list[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark under one protocol."""

    name: str
    protocol: str  # "paper", "released" or, for the tasks of our own, "mini", "dev" or "held-out"
    version: int  # goes up whenever a change moves a score
    load: Load
    score: Score
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    runs_programs: bool = False  # judging runs the generated texts as programs
