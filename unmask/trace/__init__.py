"""Traces: a run on disk, step by step, and the way back from it."""

from unmask.trace.record import (
    Change,
    Commit,
    Counts,
    Header,
    Held,
    Trace,
    change,
    count,
    frames,
    plain,
    read_trace,
    recording,
    replay,
)

__all__ = [
    "Change",
    "Commit",
    "Counts",
    "Header",
    "Held",
    "Trace",
    "change",
    "count",
    "frames",
    "plain",
    "read_trace",
    "recording",
    "replay",
]
