"""Traces: record a run step by step, and read it back."""

from unmask.trace.disagreement import Difference, differences, written
from unmask.trace.record import Change, Header, Position, change, plain, recording
from unmask.trace.replay import Trace, count, frames, one_row, read_trace, replay

__all__ = [
    "Change",
    "Difference",
    "Header",
    "Position",
    "Trace",
    "change",
    "count",
    "differences",
    "frames",
    "one_row",
    "plain",
    "read_trace",
    "recording",
    "replay",
    "written",
]
