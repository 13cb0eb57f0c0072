"""Questions with lettered options: layout, forms of answer, and reading the letter from a text.

An answer names its option in words, and the words determine the letter. A letter on its own counts too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.training.tasks.item import Item, Scored
from unmask.training.tasks.phrases import one, shuffled

LETTERS = "ABCD"
# the prompt names the form of the answer; otherwise samplers would always pick the shortest one
EXPLAIN = ("", "", "\nExplain, then choose.", "\nGive a reason and choose.")
ONE_WORD = ("\nAnswer with the option only.", "\nGive only the option.")
SHORT = ("\nGive a short answer.", "\nAnswer in short.")
ENDINGS = ("So the answer is {}.", "The answer is {}.", "Hence the answer is {}.", "Thus the answer is {}.")
NAMED = re.compile(r"(?:answer is|Answer:)\s*([^.\n]+)")


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its options, the right one first, and sentences that give the reason."""

    key: str
    text: str
    options: Sequence[str]
    reasons: Sequence[str]


def lines(options: Sequence[str]) -> str:
    """List the options with their letters, one per line."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))


def item(rng: random.Random, task: str, question: Question, short_share: float) -> Item:
    """Draw the question in one form, with one of its answers."""
    options, right = shuffled(rng, question.options), question.options[0]
    form = rng.random()
    if form < short_share / 2:
        asks, answer = one(rng, ONE_WORD), right
    elif form < short_share:
        asks, answer = one(rng, SHORT), f"Answer: {right}"
    else:
        asks = one(rng, EXPLAIN)
        between = "\n" if rng.random() < 0.4 else " "
        answer = f"{one(rng, question.reasons)}{between}{one(rng, ENDINGS).format(right)}"
    prompt = f"{question.text}\n{lines(options)}{asks}"
    key = f"{question.key} | {' '.join(sorted(question.options))}"
    return Item(task, prompt, answer, key, {"letter": LETTERS[options.index(right)], "options": options})


def score(item: Item, text: str) -> Scored:
    """Compare the letter of the text's answer with the true one."""
    extracted = letter_of(text, item.meta["options"])
    return Scored(extracted == item.meta["letter"], extracted)


def letter_of(text: str, options: Sequence[str]) -> str | None:
    """Return the letter of the last option that a text gives as its answer, or None if it gives none."""
    named = (NAMED.findall(text) or [text])[-1].strip(" .()\n")
    letters = dict(zip(options, LETTERS, strict=False))
    return letters.get(named) or (named if named in letters.values() else None)
