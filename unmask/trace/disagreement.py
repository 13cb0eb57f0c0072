"""Find where two traces of the same prompts differ."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.trace.replay import Trace


@dataclass(frozen=True, slots=True)
class Difference:
    """A column to which two runs committed different tokens.

    Attributes:
        column: The column.
        tokens: The token of each run.
        steps: The step in which each run wrote its token.
    """

    column: int
    tokens: tuple[int, int]
    steps: tuple[int, int]

    @property
    def step(self) -> int:
        """The step at which the difference appears."""
        return max(self.steps)


def differences(first: Trace, second: Trace, row: int) -> list[Difference]:
    """Return the columns of a row to which the two runs committed different tokens, from left to right."""
    ours, theirs = written(first, row), written(second, row)
    return [
        Difference(column, (ours[column][0], theirs[column][0]), (ours[column][1], theirs[column][1]))
        for column in sorted(ours.keys() & theirs.keys())
        if ours[column][0] != theirs[column][0]
    ]


def written(trace: Trace, row: int) -> dict[int, tuple[int, int]]:
    """Return the final token of every column that a run committed, with the step that wrote it."""
    tokens: dict[int, tuple[int, int]] = {}
    for change in trace.changes:
        for column in change.revoked[row]:
            tokens.pop(column, None)
        for position in (*change.commit[row], *change.rewritten[row]):
            tokens[position.column] = (position.token, change.step)
    return tokens
