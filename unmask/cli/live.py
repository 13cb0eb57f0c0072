"""The live view: the picture of the canvas, redrawn in the terminal while it fills."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.live import Live

from unmask.cli.picture import Picture

if TYPE_CHECKING:
    from unmask.types import Step

FRAMES_PER_SECOND = 12


def can_show(live: bool) -> bool:
    """Return whether to show the canvas; print a note if standard output is not a terminal."""
    if live and not sys.stdout.isatty():
        typer.echo("--live is ignored: standard output is not a terminal", err=True)
        return False
    return live


class Throttle:
    """Limits the frames per second."""

    def __init__(self, per_second: float) -> None:
        self._gap = 1 / per_second
        self._next = 0.0

    def due(self) -> bool:
        """Return True at most that many times a second."""
        now = monotonic()
        if now < self._next:
            return False
        self._next = now + self._gap
        return True


@contextmanager
def showing(picture: Picture, console: Console) -> Iterator[Callable[[Step], None]]:
    """Yield a function that takes steps and redraws the picture when a frame is due."""
    throttle = Throttle(FRAMES_PER_SECOND)
    with Live(console=console, auto_refresh=False, transient=True) as display:

        def draw() -> None:
            display.update(picture.render(console.width, console.height), refresh=True)

        def watch(step: Step) -> None:
            picture.watch(step)
            if throttle.due():
                draw()

        draw()
        yield watch
        draw()
