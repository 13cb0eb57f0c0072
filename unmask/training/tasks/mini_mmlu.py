"""mini-mmlu: four choices over the facts and rules of a closed world."""

from __future__ import annotations

import random

from unmask.training.tasks import options
from unmask.training.tasks.item import Item, Task, one_by_one
from unmask.training.tasks.options import Question
from unmask.training.tasks.phrases import capital, listed, one, some, whole
from unmask.training.tasks.words import NAMES
from unmask.training.tasks.world import facts
from unmask.training.tasks.world.facts import Relation

NAME = "mini-mmlu"
SHORT_SHARE = 0.35
LATER_SHORT_SHARE = 0.5  # hard questions: two facts and two sums, and no room to write them down
MISSES = (1, 2, 3, 4, 6, 10)


def draw(rng: random.Random) -> Item:
    """Draw one question in one of its wordings."""
    kind = rng.random()
    if kind < 0.25:
        return options.item(rng, NAME, _age_later(rng), LATER_SHORT_SHARE)
    if kind < 0.4:
        question = _value(rng)
    elif kind < 0.5:
        question = _subject(rng)
    elif kind < 0.67:
        question = _two_facts(rng)
    elif kind < 0.84:
        question = _rule(rng)
    else:
        question = _age(rng)
    return options.item(rng, NAME, question, SHORT_SHARE)


def _value(rng: random.Random) -> Question:
    """Ask for a fact about a subject."""
    relation = one(rng, facts.RELATIONS)
    subject = one(rng, tuple(relation.facts))
    text = relation.say(one(rng, relation.asks), subject)
    wrong = _other_values(rng, relation, subject)
    reasons = [capital(relation.say(form, subject)) for form in relation.says]
    return Question(f"{relation.name} of {subject}", text, [relation.facts[subject], *wrong], reasons)


def _other_values(rng: random.Random, relation: Relation, subject: str) -> list[str]:
    return [value for value in some(rng, relation.values, 4) if value != relation.facts[subject]][:3]


def _subject(rng: random.Random) -> Question:
    """Ask which subject a fact is about."""
    relation = one(rng, facts.RELATIONS)
    subjects = tuple(relation.facts)
    subject = one(rng, subjects)
    value = relation.facts[subject]
    text = one(rng, relation.asks_back).replace("{v}", value)
    wrong = [other for other in some(rng, subjects, 8) if relation.facts[other] != value][:3]
    reasons = [capital(relation.say(form, subject)) for form in relation.says]
    return Question(f"{relation.name} is {value}", text, [subject, *wrong], reasons)


def _two_facts(rng: random.Random) -> Question:
    """Ask for a fact about someone's pet or town."""
    first, seconds = one(rng, ((facts.PET, facts.ANIMAL_RELATIONS), (facts.TOWN, facts.TOWN_RELATIONS)))
    person, second = one(rng, tuple(first.facts)), one(rng, seconds)
    middle = first.facts[person]
    called = f"the pet of {person}" if first is facts.PET else f"the town of {person}"
    text = one(rng, second.asks).replace("{s}", called)
    wrong = _other_values(rng, second, middle)
    reasons = [
        f"{first.say(start, person)} {capital(second.say(form, middle))}"
        for start in first.says[:1]
        for form in second.says
    ]
    return Question(f"{second.name} of {called}", text, [second.facts[middle], *wrong], reasons)


def _rule(rng: random.Random) -> Question:
    """Ask which subject has a property, or lacks it."""
    rule = one(rng, facts.RULES)
    wanted = rng.random() < 0.5
    subjects = tuple(rule.relation.facts)
    right = one(rng, [subject for subject in subjects if rule.holds(subject) is wanted])
    wrong = some(rng, [subject for subject in subjects if rule.holds(subject) is not wanted], 3)
    predicate = rule.can if wanted else rule.cannot
    fact = capital(rule.relation.say(rule.relation.says[0], right))[:-1]
    reasons = (
        f"{fact}, so it {predicate}.",
        f"{fact}. It {predicate}.",
        f"{fact}, and that is why it {predicate}.",
    )
    return Question(predicate, f"Which of these {rule.noun} {predicate}?", [right, *wrong], reasons)


def _age(rng: random.Random) -> Question:
    """Ask who is the oldest or the youngest of four people."""
    people, word = some(rng, NAMES, 4), one(rng, ("oldest", "youngest"))
    right = (max if word == "oldest" else min)(people, key=facts.AGES.__getitem__)
    text = one(rng, (f"Who of these is the {word}?", f"Which of these people is the {word}?"))
    known = [f"{name} is {facts.AGES[name]}" for name in people]
    others = [name for name in people if name != right]
    return Question(word, text, [right, *others], [f"{listed(known)}.", f"We know that {listed(known)}."])


def _age_later(rng: random.Random) -> Question:
    """Ask how old someone is when someone else reaches an age."""
    person, other = some(rng, NAMES, 2)
    now, other_now, years = facts.AGES[person], facts.AGES[other], whole(rng, 1, 30)
    then, right = other_now + years, now + years
    text = one(
        rng,
        (
            f"How old is {person} when {other} is {then}?",
            f"When {other} is {then}, how old is {person}?",
            f"What is the age of {person} when {other} is {then}?",
        ),
    )
    waiting, sum_then = f"{then} - {other_now} = {years}", f"{now} + {years} = {right}"
    reasons = (
        f"{other} is {other_now} now, so that is in {waiting} years. Then {person} is {sum_then}.",
        f"{person} is {now} and {other} is {other_now}. In {waiting} years, {person} is {sum_then}.",
    )
    below = whole(rng, 0, 3)  # every rank is equally likely; otherwise the middle would be a good guess
    wrong = [right - miss for miss in some(rng, MISSES, below)]
    wrong += [right + miss for miss in some(rng, MISSES, 3 - below)]
    return Question(f"age of {person} when {other} is {then}", text, [*map(str, (right, *wrong))], reasons)


TASK = Task(NAME, draw, one_by_one(options.score))
