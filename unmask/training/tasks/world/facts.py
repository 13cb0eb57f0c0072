"""Facts and rules of an invented world; within a relation every value is equally frequent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from unmask.training.tasks.words import NAMES

ANIMALS = (
    *(
        "heron",
        "otter",
        "lynx",
        "crane",
        "wolf",
        "fox",
        "owl",
        "toad",
        "newt",
        "hare",
        "goat",
        "mole",
        "seal",
    ),
    *(
        "crab",
        "duck",
        "swan",
        "hawk",
        "bear",
        "deer",
        "frog",
        "moth",
        "wasp",
        "snail",
        "pony",
        "lamb",
        "goose",
    ),
    *("raven", "trout", "mouse", "horse"),
)
TOWNS = (
    "Elmford",
    "Fenton",
    "Harwick",
    "Kelby",
    "Marlow",
    "Norvale",
    "Orrin",
    "Rothwell",
    "Thorne",
    "Westby",
)
THINGS = (
    *(
        "cup",
        "lamp",
        "box",
        "bell",
        "chair",
        "drum",
        "flute",
        "hat",
        "jar",
        "key",
        "knife",
        "mask",
        "pot",
        "ring",
    ),
    *("rope", "spoon", "table", "vase", "wheel", "whistle"),
)
PLACES = ("river", "lake", "marsh", "island", "forest", "cave", "hill", "meadow", "desert", "valley")
FOODS = ("fish", "grass", "seeds", "berries", "roots", "worms", "nuts", "leaves", "honey", "eggs")
COLOURS = ("grey", "brown", "white", "black", "red", "green", "yellow", "blue", "silver", "golden")
TIMES = ("dawn", "noon", "dusk", "night", "sunrise", "sunset")
JOBS = ("baker", "smith", "farmer", "sailor", "teacher", "doctor", "weaver", "painter", "miller", "hunter")
INSTRUMENTS = ("harp", "horn", "lute", "fiddle", "pipe")
MATERIALS = ("wood", "stone", "glass", "iron", "clay", "wool", "paper", "gold", "bone", "silk")
ROOMS = ("kitchen", "cellar", "attic", "hall", "barn", "garden", "tower", "study", "stable", "shop")


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of subjects and values, with questions both ways and statements over {s} and {v}."""

    name: str
    subject: str  # form of a subject in a sentence: "the {}" or "{}"
    facts: dict[str, str]
    values: tuple[str, ...]
    asks: tuple[str, ...]
    asks_back: tuple[str, ...]  # questions for the subject that has a value
    says: tuple[str, ...]

    def say(self, form: str, subject: str) -> str:
        """Fill subject and value into a sentence."""
        return form.replace("{s}", self.subject.replace("{}", subject)).replace("{v}", self.facts[subject])


def _spread(name: str, subjects: tuple[str, ...], values: tuple[str, ...]) -> dict[str, str]:
    """Assign a fixed arbitrary value to each subject, all values equally often."""
    order = sorted(subjects, key=lambda subject: hashlib.sha256(f"{name} {subject}".encode()).digest())
    given = {subject: values[place % len(values)] for place, subject in enumerate(order)}
    return {subject: given[subject] for subject in subjects}


def _relation(
    name: str,
    subject: str,
    subjects: tuple[str, ...],
    values: tuple[str, ...],
    words: tuple[tuple[str, ...], ...],
) -> Relation:
    return Relation(name, subject, _spread(name, subjects, values), values, *words)


HOME = _relation(
    *("home", "the {}", ANIMALS, PLACES),
    (
        ("Where does {s} live?", "Near which place does {s} live?", "Where is the home of {s}?"),
        ("Which animal lives near the {v}?", "Which of these lives near the {v}?"),
        ("{s} lives near the {v}.", "The home of {s} is near the {v}."),
    ),
)
FOOD = _relation(
    *("food", "the {}", ANIMALS, FOODS),
    (
        ("What does {s} eat?", "What is the food of {s}?"),
        ("Which animal eats {v}?", "Which of these eats {v}?"),
        ("{s} eats {v}.", "The food of {s} is {v}."),
    ),
)
COLOUR = _relation(
    *("colour", "the {}", ANIMALS, COLOURS),
    (
        ("What colour is {s}?", "Which colour does {s} have?"),
        ("Which animal is {v}?", "Which of these is {v}?"),
        ("{s} is {v}.", "The colour of {s} is {v}."),
    ),
)
WAKING = _relation(
    *("waking", "the {}", ANIMALS, TIMES),
    (
        ("When does {s} wake?", "At what time does {s} wake?"),
        ("Which animal wakes at {v}?", "Which of these wakes at {v}?"),
        ("{s} wakes at {v}.", "At {v}, {s} wakes."),
    ),
)
JOB = _relation(
    *("job", "{}", NAMES, JOBS),
    (
        ("What is the job of {s}?", "What does {s} work as?"),
        ("Who is the {v}?", "Who works as the {v}?"),
        ("{s} is the {v}.", "{s} works as the {v}."),
    ),
)
TOWN = _relation(
    *("town", "{}", NAMES, TOWNS),
    (
        ("In which town does {s} live?", "Where does {s} live?"),
        ("Who lives in {v}?", "Which person lives in {v}?"),
        ("{s} lives in {v}.", "The town of {s} is {v}."),
    ),
)
PET = _relation(
    *("pet", "{}", NAMES, ANIMALS[::-1]),
    (
        ("Which animal does {s} keep?", "What is the pet of {s}?"),
        ("Who keeps the {v}?", "Whose pet is the {v}?"),
        ("{s} keeps the {v}.", "The pet of {s} is the {v}."),
    ),
)
MUSIC = _relation(
    *("music", "{}", NAMES, INSTRUMENTS),
    (
        ("What does {s} play?", "Which instrument does {s} play?"),
        ("Who plays the {v}?", "Which person plays the {v}?"),
        ("{s} plays the {v}.", "The instrument of {s} is the {v}."),
    ),
)
MATERIAL = _relation(
    *("material", "the {}", THINGS, MATERIALS),
    (
        ("What is {s} made of?", "Of what is {s} made?"),
        ("Which thing is made of {v}?", "Which of these is made of {v}?"),
        ("{s} is made of {v}.", "People made {s} of {v}."),
    ),
)
ROOM = _relation(
    *("room", "the {}", THINGS, ROOMS),
    (
        ("Where is {s} kept?", "In which room is {s} kept?"),
        ("Which thing is kept in the {v}?", "Which of these is in the {v}?"),
        ("{s} is kept in the {v}.", "People keep {s} in the {v}."),
    ),
)
LAND = _relation(
    *("land", "{}", TOWNS, PLACES),
    (
        ("Near which place is {s}?", "Where is {s}?"),
        ("Which town is near the {v}?", "Which of these is near the {v}?"),
        ("{s} is near the {v}.", "The town of {s} is near the {v}."),
    ),
)
FLAG = _relation(
    *("flag", "{}", TOWNS, COLOURS),
    (
        ("What colour is the flag of {s}?", "Which colour does the flag of {s} have?"),
        ("Which town has a flag that is {v}?", "Whose flag is {v}?"),
        ("The flag of {s} is {v}.", "The flag over {s} is {v}."),
    ),
)
TRADE = _relation(
    *("trade", "{}", TOWNS, FOODS),
    (
        ("What does {s} sell?", "What is sold in {s}?"),
        ("Which town sells {v}?", "Which of these sells {v}?"),
        ("{s} sells {v}.", "People in {s} sell {v}."),
    ),
)
RELATIONS = (HOME, FOOD, COLOUR, WAKING, JOB, TOWN, PET, MUSIC, MATERIAL, ROOM, LAND, FLAG, TRADE)
ANIMAL_RELATIONS, TOWN_RELATIONS = (HOME, FOOD, COLOUR, WAKING), (LAND, FLAG, TRADE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A property of the subjects whose value in a relation is one of some values."""

    relation: Relation
    values: tuple[str, ...]
    noun: str
    can: str
    cannot: str

    def holds(self, subject: str) -> bool:
        """Whether the subject has the property."""
        return self.relation.facts[subject] in self.values


AGES: dict[str, int] = {
    name: int(age)
    for name, age in _spread("age", NAMES, tuple(map(str, range(11, 11 + 2 * len(NAMES), 2)))).items()
}
RULES = (
    Rule(HOME, ("river", "lake", "marsh", "island"), "animals", "can swim", "cannot swim"),
    Rule(WAKING, ("dusk", "night", "sunset"), "animals", "can see in the dark", "cannot see in the dark"),
    Rule(MATERIAL, ("wood", "wool", "paper", "silk"), "things", "can burn", "cannot burn"),
    Rule(MATERIAL, ("glass", "clay", "bone"), "things", "can break", "cannot break"),
)
