"""Everyday scripts, step by step. The verbs within a script are all different."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A goal and the steps to it, in order."""

    goal: str
    steps: tuple[str, ...]


def _scripts(goal: str, things: str, steps: str) -> list[Script]:
    """Make one script per thing, filled in for {t}."""
    made = []
    for thing in things.split():
        parts = tuple(step.replace("{t}", thing) for step in steps.split("; "))
        made.append(Script(goal.replace("{t}", thing), parts))
    return made


SCRIPTS: tuple[Script, ...] = (
    *_scripts(
        "make {t}",
        "tea coffee cocoa",
        "fills the kettle; heats the water; takes a cup; pours the {t}; "
        "adds milk; stirs the {t}; drinks the {t}",
    ),
    *_scripts(
        "cook {t}",
        "rice beans soup",
        "washes the {t}; lights the stove; boils the {t}; adds salt; "
        "tastes the {t}; serves the {t}; eats the {t}",
    ),
    *_scripts(
        "bake {t}",
        "bread cake pies",
        "mixes the flour; kneads the dough; heats the oven; bakes the {t}; "
        "cools the {t}; cuts the {t}; shares the {t}",
    ),
    *_scripts(
        "wash the {t}",
        "shirt coat dress",
        "sorts the laundry; soaks the {t}; scrubs the {t}; rinses the {t}; "
        "hangs up the {t}; irons the {t}; folds the {t}",
    ),
    *_scripts(
        "grow {t}",
        "beans roses corn",
        "digs the soil; plants the {t}; waters the {t}; pulls the weeds; "
        "waits for summer; picks the {t}; sells the {t}",
    ),
    *_scripts(
        "paint the {t}",
        "wall door chair",
        "cleans the {t}; opens the paint; dips the brush; paints the {t}; dries the {t}; admires the {t}",
    ),
    *_scripts(
        "mend the {t}",
        "shirt coat sail",
        "finds the hole; threads the needle; sews the {t}; ties a knot; cuts the thread; wears the {t}",
    ),
    *_scripts(
        "send the {t}",
        "letter parcel card",
        "writes the {t}; signs the {t}; closes the {t}; buys a stamp; walks to town; posts the {t}",
    ),
    *_scripts(
        "read the {t}",
        "book story map",
        "enters the library; asks for the {t}; borrows the {t}; sits down; "
        "opens the {t}; reads the {t}; returns the {t}",
    ),
    *_scripts(
        "catch a {t}",
        "trout crab seal",
        "packs the net; rows the boat; drops the net; waits for hours; "
        "feels a pull; catches the {t}; brings home the {t}",
    ),
    *_scripts(
        "fly to the {t}",
        "island desert valley",
        "books a ticket; packs a bag; reaches the airport; boards the plane; lands safely; visits the {t}",
    ),
    *_scripts(
        "buy a {t}",
        "lamp hat drum",
        "makes a list; enters the shop; chooses the {t}; pays for the {t}; "
        "carries home the {t}; shows the {t}",
    ),
    *_scripts(
        "climb the {t}",
        "hill tower tree",
        "ties the boots; walks to the {t}; climbs the {t}; enjoys the view; takes a picture; comes down",
    ),
    *_scripts(
        "ride the {t}",
        "horse pony goat",
        "brushes the {t}; saddles the {t}; mounts the {t}; rides the {t}; stops at noon; feeds the {t}",
    ),
    *_scripts(
        "play the {t}",
        "harp fiddle flute",
        "unpacks the {t}; tunes the {t}; opens the music; plays the {t}; bows to all; leaves the stage",
    ),
)
