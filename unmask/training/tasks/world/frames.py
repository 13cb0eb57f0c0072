"""Sentences about two things or people whose pronoun a causal rule resolves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """A clause with {a} and {b}, and the properties of each that cause it."""

    clause: str
    first: tuple[str, ...]  # said of {a}
    second: tuple[str, ...]  # said of {b}


THING_FRAMES: tuple[Frame, ...] = (
    Frame("the {a} did not fit into the {b}", ("was big", "was wide"), ("was small", "was narrow")),
    Frame("the {a} fitted into the {b}", ("was small", "was narrow"), ("was big", "was wide")),
    Frame("the {b} could not hold the {a}", ("was big", "was heavy"), ("was small", "was weak")),
    Frame("the {a} was hidden behind the {b}", ("was small", "was low"), ("was big", "was tall")),
    Frame("the {a} showed above the {b}", ("was big", "was tall"), ("was small", "was low")),
    Frame("the {a} broke under the {b}", ("was weak", "was thin"), ("was heavy", "was hard")),
    Frame("the {a} did not break under the {b}", ("was hard", "was thick"), ("was light", "was soft")),
    Frame("the {a} scratched the {b}", ("was hard", "was sharp"), ("was soft", "was smooth")),
    Frame("the {a} did not scratch the {b}", ("was soft", "was smooth"), ("was hard", "was thick")),
    Frame("the {a} sank and the {b} did not", ("was heavy",), ("was light",)),
    Frame("the {a} cost more than the {b}", ("was new", "was rare"), ("was old", "was common")),
    Frame("the {a} cost less than the {b}", ("was old", "was common"), ("was new", "was rare")),
    Frame("the {a} rolled past the {b}", ("was fast", "was round"), ("was slow", "was flat")),
    Frame("the {a} could not catch up with the {b}", ("was slow", "was flat"), ("was fast", "was round")),
    Frame("the {a} burned before the {b}", ("was dry", "was thin"), ("was wet", "was thick")),
    Frame("the {a} could not reach the {b}", ("was short", "was low"), ("was far", "was tall")),
)

PERSON_FRAMES: tuple[Frame, ...] = (
    Frame("{a} lent money to {b}", ("was rich", "had money"), ("was poor", "needed money")),
    Frame("{a} borrowed money from {b}", ("was poor", "needed money"), ("was rich", "had money")),
    Frame("{a} carried {b}", ("was strong", "had time"), ("was tired", "was hurt")),
    Frame("{a} could not carry {b}", ("was weak", "was tired"), ("was heavy", "was big")),
    Frame("{a} asked {b} for help", ("was lost", "was hurt"), ("was wise", "had time")),
    Frame("{a} gave help to {b}", ("was wise", "had time"), ("was lost", "was hurt")),
    Frame("{a} taught {b}", ("was wise", "knew the trade"), ("was young", "was new")),
    Frame("{a} learned from {b}", ("was young", "was new"), ("was wise", "knew the trade")),
    Frame("{a} won the race against {b}", ("was fast", "was fit"), ("was slow", "was tired")),
    Frame("{a} lost the race against {b}", ("was slow", "was tired"), ("was fast", "was fit")),
    Frame("{a} could not hear {b}", ("was deaf", "was far"), ("was quiet", "was hoarse")),
    Frame("{a} forgave {b}", ("was kind", "was calm"), ("was sorry", "was sad")),
    Frame("{a} scolded {b}", ("was angry", "was strict"), ("was late", "was lazy")),
    Frame("{a} apologised to {b}", ("was late", "was sorry"), ("was angry", "was strict")),
    Frame("{a} followed {b}", ("was lost", "was curious"), ("knew the way", "was fast")),
    Frame("{a} led {b} home", ("knew the way", "was kind"), ("was lost", "was young")),
    Frame("{a} cooked for {b}", ("had time", "was kind"), ("was hungry", "was sick")),
    Frame("{a} ate with {b}", ("was hungry",), ("had food",)),
)
