"""What a person sees of a run: a bar where `rich` is installed and the terminal can draw it, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unmask.training.trainer import Record


@contextmanager
def show_progress() -> Iterator[Callable[[Record], None]]:
    """A `watch` for `train`, while the context lasts; all of it goes to stderr."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    except ImportError:
        yield _line
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=1.0)

        def watch(record: Record) -> None:
            bar.update(task, completed=record.progress, description=_short(record))
            if record.validation:
                bar.console.print(_text(record), highlight=False)

        yield watch


def _short(record: Record) -> str:
    return f"step {record.step}  loss {record.loss:.4f}  {record.tokens_per_second / 1e6:.2f} M tokens/s"


def _text(record: Record) -> str:
    """A record in words."""
    parts = [f"{record.progress:6.1%}  {record.elapsed:6.0f} s  {_short(record)}  lr {record.lr:.5f}"]
    if record.validation:
        rates = "/".join(f".{rate.partition('.')[2]}" if "." in rate else rate for rate in record.validation)
        parts.append(f"validation at {rates}: " + "/".join(f"{ce:.3f}" for ce in record.validation.values()))
    parts += [f"{name} {value:.3g}" for name, value in record.probe.items()]
    return "  ".join(parts)


def _line(record: Record) -> None:
    sys.stderr.write(_text(record) + "\n")
    sys.stderr.flush()
