"""A progress bar of the tokens decoded so far. Shown only if rich is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

from unmask.decoding.canvas import Canvas
from unmask.types import Step

SECONDS_PER_COUNT = 0.1
Update = Callable[[int], None]  # called with the number of tokens done


def showing(show: bool | None, total: int) -> AbstractContextManager[Update | None]:
    """Return a context that gives a function to move the bar, or None if there is no bar.

    `show=None` shows a bar only on a terminal or in a notebook.
    """
    if show is False:
        return nullcontext()
    try:
        from unmask.progress import can_show, progress
    except ImportError:  # without rich
        return nullcontext()
    return progress("decoding", total, show=True) if show or can_show() else nullcontext()


def counted(steps: Iterable[Step], canvas: Canvas, update: Update | None, done: int) -> Iterator[Step]:
    """Yield the steps of a batch and move the bar; `done` rows were decoded before."""
    rows, columns = canvas.tokens.shape
    total, last = (done + rows) * (columns - canvas.start), 0.0
    for step in steps:
        if update is not None and perf_counter() - last > SECONDS_PER_COUNT:  # counting waits for the device
            last = perf_counter()
            update(total - int((step.tokens == canvas.mask_id).sum()))
        yield step
