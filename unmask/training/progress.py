"""Show the progress of a run: a bar if `rich` and a terminal are available, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unmask.training.trainer import Record


@contextmanager
def show_progress() -> Iterator[Callable[[Record], None]]:
    """Yield a `watch` callback for `train` that writes to stderr."""
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
                bar.console.print(_format(record), highlight=False)

        yield watch


def _short(record: Record) -> str:
    speed = record.tokens_per_second / 1e3
    rate = f"{speed:.1f} k" if speed < 1000 else f"{speed / 1000:.2f} M"
    return f"step {record.step}  loss {record.loss:.4f}  {rate} tokens/s"


def _format(record: Record) -> str:
    """Format a record as one line."""
    parts = [f"{record.progress:6.1%}  {record.elapsed:6.0f} s  {_short(record)}  lr {record.lr:.5f}"]
    if record.validation:
        rates = "/".join(f".{rate.partition('.')[2]}" if "." in rate else rate for rate in record.validation)
        parts.append(f"validation at {rates}: " + "/".join(f"{ce:.3f}" for ce in record.validation.values()))
    parts += [f"{name} {value:.3g}" for name, value in record.probe.items()]
    return "  ".join(parts)


def _line(record: Record) -> None:
    sys.stderr.write(_format(record) + "\n")
    sys.stderr.flush()
