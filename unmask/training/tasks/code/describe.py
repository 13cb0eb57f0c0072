"""Describe a pipeline in words."""

from __future__ import annotations

import random

from unmask.training.tasks.code.guards import Guard
from unmask.training.tasks.code.pipeline import Pipeline
from unmask.training.tasks.phrases import capital, one

INPUT_WORDS = {
    "numbers": "a list of numbers",
    "text": "a string",
    "words": "a string of words",
    "integer": "a number",
}
SPLIT = ("split the text into words", "split it into words")


def phrases(rng: random.Random, pipeline: Pipeline, said: dict[int, str] | None = None) -> list[str]:
    """Return one command per stage; `said` replaces the words of some stages."""
    spoken = [SPLIT[int(rng.random() * 2)]] if pipeline.takes == "words" else []
    for place, stage in enumerate(pipeline.stages):
        spoken.append((said or {}).get(place) or one(rng, stage.says))
    if pipeline.stages[-1].kind != "end":
        spoken.append(one(rng, ("return the result", "return it")))
    return spoken


def commands(rng: random.Random, spoken: list[str], guard: Guard | None) -> str:
    """Write the commands as full sentences, with the guard before or after them."""
    form = int(rng.random() * 3)
    if form == 0:
        text = capital(". ".join(capital(phrase) for phrase in spoken)) + "."
    elif form == 1:
        text = f"{capital(', '.join(spoken[:-1]))} and {spoken[-1]}."
    else:
        text = f"First {', then '.join(spoken[:-1])}, and {spoken[-1]}."
    if guard is None:
        return text
    when, value = guard.says, repr(guard.value)
    early = one(rng, (f"If {when}, return {value}.", f"Return {value} if {when}."))
    return f"{early} {text}" if rng.random() < 0.6 else f"{text} {early}"


def clause(rng: random.Random, spoken: list[str], guard: Guard | None) -> str:
    """Join the commands into one, without the final full stop."""
    text = f"{one(rng, (', ', ', then ')).join(spoken[:-1])} and {spoken[-1]}"
    if guard is None:
        return text
    return f"{text}. Return {guard.value!r} if {guard.says}"
