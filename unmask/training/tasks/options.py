"""Questions with lettered options: their layout, their forms of answer, and the letter in a text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.training.tasks.item import Item, Scored
from unmask.training.tasks.phrases import one, shuffled

LETTERS = "ABCD"
# the form is named in the prompt: left open, a sampler would always choose the shortest
EXPLAIN = ("", "", "\nExplain, then give the letter.", "\nGive a reason and the letter.")
LETTER_ONLY = ("\nAnswer with the letter only.", "\nGive only the letter.")
SHORT = ("\nGive a short answer.", "\nAnswer in short.")
ENDINGS = ("So the answer is {}.", "The answer is {}.", "Hence the answer is {}.", "Thus the answer is {}.")
LETTER = re.compile(
    r"answer is:?\s*\(?([A-D])\b|Answer:\s*\(?([A-D])\b|^\s*\(?([A-D])\b(?=[.)\s]*$)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its options, the right one first, and sentences that give the reason."""

    key: str
    text: str
    options: Sequence[str]
    reasons: Sequence[str]


def lines(options: Sequence[str]) -> str:
    """The options under their letters, a line each."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))


def item(rng: random.Random, task: str, question: Question, short_share: float) -> Item:
    """The question in one form, with one of its answers."""
    options = shuffled(rng, question.options)
    letter = LETTERS[options.index(question.options[0])]
    form = rng.random()
    if form < short_share / 2:
        asks, answer = one(rng, LETTER_ONLY), letter
    elif form < short_share:
        asks, answer = one(rng, SHORT), f"Answer: {letter}"
    else:
        asks = one(rng, EXPLAIN)
        between = "\n" if rng.random() < 0.4 else " "
        answer = f"{one(rng, question.reasons)}{between}{one(rng, ENDINGS).format(letter)}"
    prompt = f"{question.text}\n{lines(options)}{asks}"
    key = f"{question.key} | {' '.join(sorted(question.options))}"
    return Item(task, prompt, answer, key, {"letter": letter})


def score(item: Item, text: str) -> Scored:
    """The last letter that the text calls its answer, compared with the true one."""
    found = [next(filter(None, groups)) for groups in LETTER.findall(text)]
    extracted = found[-1] if found else None
    return Scored(extracted == item.meta["letter"], extracted)
