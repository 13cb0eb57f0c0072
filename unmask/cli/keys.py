"""The keyboard while a run is watched: keys are not echoed, and Ctrl-C stops between two steps."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def no_echo() -> Iterator[None]:
    """Do not echo typed keys, including ^C; the next prompt still reads them."""
    try:
        import termios
    except ImportError:  # not a Unix terminal
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def stopping_between_steps() -> Iterator[Callable[[object], None]]:
    """Yield a watcher of steps that raises KeyboardInterrupt after Ctrl-C; a second Ctrl-C raises at once.

    Interrupting a step could leave a compiled model in the middle of a forward.
    """
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def watch(step: object) -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield watch
    finally:
        signal.signal(signal.SIGINT, before)
