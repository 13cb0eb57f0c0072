"""Progress of an evaluation: a bar on a terminal, else a line every 30 seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

if TYPE_CHECKING:
    from unmask.evals.run import Progress

SECONDS_BETWEEN_LINES = 30.0


class Watcher:
    """Remembers the last progress report."""

    last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self.last = progress


class Lines(Watcher):
    """Prints a line on standard error every 30 seconds at most."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._printed = monotonic()

    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        if monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = monotonic()
            typer.echo(f"{self._label}: {progress.done}/{progress.total}  {facts(progress)}", err=True)


class BarWithFacts(Bar):
    """A bar with its facts on a line below: both together would fill a line of 80 columns.

    The echo of Ctrl-C would wrap a full line into two, and only one of them would be cleared.
    """

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar and its facts."""
        yield from super().get_renderables()
        yield from (Text(task.fields["facts"]) for task in self.tasks)


class Drawn(Watcher):
    """Draws a bar."""

    def __init__(self, label: str, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=None, facts="")

    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        self._bar.update(self._task, completed=progress.done, total=progress.total, facts=facts(progress))


@contextmanager
def showing_progress(label: str) -> Iterator[Watcher]:
    """Yield a watcher of one task's run."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(label)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
    )
    with BarWithFacts(*columns, console=console, transient=True) as bar:
        yield Drawn(label, bar)


def facts(progress: Progress) -> str:
    """Return the running accuracy, the cost per sample and the time left."""
    if not progress.done:
        return ""
    done, left = progress.done, progress.seconds_left
    parts = [
        f"accuracy {progress.correct / done:.1%}",
        f"{progress.steps / done:.1f} steps",
        f"{progress.forwards / done:.1f} forwards",
        *([] if left is None else [f"{_clock(left)} left"]),
    ]
    return " · ".join(parts)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
