"""Progress bars on standard error or in a notebook. Needs rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Timer

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

PATIENCE = 2.0  # seconds before anything is shown


def can_show() -> bool:
    """Return whether somebody would see a bar: on a terminal, or in a notebook that can draw it."""
    console = Console(stderr=True)
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


@contextmanager
def progress(
    label: str, total: int | None = None, patience: float | None = None, *, show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar and yield a function that sets the amount done.

    Without a total the bar only pulses. It appears after `patience` seconds, 2 by default. With `show=None`
    it appears only where somebody would see it.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    share = () if total is None else (TaskProgressColumn(),)
    shown = can_show() if show is None else show
    bar = Progress(*columns, *share, console=Console(stderr=True), transient=True, disable=not shown)
    task = bar.add_task(label, total=total)
    timer = Timer(PATIENCE if patience is None else patience, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
