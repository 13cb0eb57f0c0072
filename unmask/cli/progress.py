"""Progress on standard error, shown to those who wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def progress(
    label: str, total: int | None = None, patience: float | None = None
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the amount done; without a total the bar only moves.

    The bar is shown after `patience` seconds, two by default.
    """
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
    )
    share = () if total is None else (TaskProgressColumn(),)
    bar = Progress(*columns, *share, console=console, transient=True, disable=not console.is_terminal)
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
