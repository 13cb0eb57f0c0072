"""The parts of a benchmark: samples, and a function that judges texts. Independent of any benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from unmask.text.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a benchmark; all its values are JSON.

    Attributes:
        id: Name that is the same in every run: "gsm8k/17", "HumanEval/3".
        prompt: A chat, or raw text where the protocol uses no chat template.
        gold: The right answer, or the data that judges it.
        meta: More data for scoring. "around" holds the texts before and after a gap: they are on the canvas,
            and only the gap is decoded.
    """

    id: str
    prompt: Prompt
    gold: Any
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a text is right, and the answer that was read from it.

    Attributes:
        correct: Whether the text is right.
        extracted: The answer that was read from it; None: none was found.
        also: The same text under other scorings, by name.
    """

    correct: bool
    extracted: str | None
    also: Mapping[str, bool] = field(default_factory=dict)


Load: TypeAlias = Callable[[Path | None], Sequence[Sample]]  # from a local folder, or from the hub if None
Score: TypeAlias = Callable[[Sequence[Sample], Sequence[str]], list[Verdict]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark under one protocol.

    Attributes:
        name: Name of the task in `unmask eval`.
        protocol: "paper", "released" or, for the small tasks, "mini", "dev" or "held-out".
        version: Increased by every change that affects a score.
        load: Returns the samples.
        score: Judges texts.
        max_new_tokens: Tokens to decode.
        stop: A text ends before the earliest of these.
        runs_programs: Judging runs the generated texts as programs.
    """

    name: str
    protocol: str
    version: int
    load: Load
    score: Score
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    runs_programs: bool = False
