"""Word problems as sentences and dependent arithmetic steps, with worked answers."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from unmask.training.tasks.phrases import one

LARGEST = 100
MOST_SENTENCES = 4  # with more steps, sentences would not fit on the canvas


@dataclass(frozen=True, slots=True)
class Step:
    """One calculation: its result, its name, and sentences about it with {e} for the expression."""

    calculation: str
    value: int
    label: str
    sentences: tuple[str, ...]
    needs: tuple[int, ...]  # indices of the steps whose results it uses


@dataclass(slots=True)
class Story:
    """A problem under construction."""

    question: str = ""
    facts: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    possible: bool = True

    def step(
        self, calculation: tuple[int, str, int], label: str, sentences: tuple[str, ...], *needs: int | None
    ) -> int:
        """Add a step and return its result; a result out of range makes the story impossible."""
        left, sign, right = calculation
        if sign == "/":
            value, rest = divmod(left, right) if right else (0, 1)
            self.possible &= rest == 0
        else:
            value = left + right if sign == "+" else left - right if sign == "-" else left * right
        self.possible &= 1 < value <= LARGEST
        known = tuple(place for place in needs if place is not None)
        self.steps.append(Step(f"{left} {sign} {right} = {value}", value, label, sentences, known))
        return value

    @property
    def last(self) -> int:
        """The index of the newest step."""
        return len(self.steps) - 1


def ordered(rng: random.Random, steps: list[Step]) -> list[Step]:
    """Return the steps in a random order that respects their dependencies."""
    left, done = list(range(len(steps))), []
    while left:
        ready = [place for place in left if all(need in done for need in steps[place].needs)]
        place = one(rng, ready)
        left.remove(place)
        done.append(place)
    return [steps[place] for place in done]


def worked(rng: random.Random, story: Story, calculation_only: bool) -> str:
    """Draw one valid answer: an order of the steps, a layout and a wording."""
    steps = ordered(rng, story.steps)
    if calculation_only:
        body = "\n".join(step.calculation for step in steps)
    elif len(steps) > MOST_SENTENCES or rng.random() < 0.3:
        body = "\n".join(f"{step.label}: {step.calculation}" for step in steps)
    else:
        said = [one(rng, step.sentences).replace("{e}", step.calculation) for step in steps]
        body = _laid_out(rng, said)
    return f"{body}\nThe final answer is {story.steps[-1].value}."


def _laid_out(rng: random.Random, sentences: list[str]) -> str:
    layout = rng.random()
    if layout < 0.4:
        return " ".join(sentences)
    if layout < 0.75:
        return "\n".join(sentences)
    return "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences, 1))
