"""mini-sudoku: fill a grid of 4 x 4, so that every row, column and quarter has each number once."""

from __future__ import annotations

import random
from functools import cache
from itertools import permutations

from unmask.training.tasks.item import Item, Scored, Task, one_by_one
from unmask.training.tasks.phrases import chance, one, shuffled, whole

NAME = "mini-sudoku"
SIZE = 4
DIGITS = "1234"
FEWEST, MOST = 5, 9  # cells given
UNIQUE_SHARE = 0.7  # share of puzzles with one solution; the others may have several
ASKS = ("Solve this sudoku.", "Fill in the sudoku.", "Complete this 4 x 4 sudoku.", "Solve the sudoku below.")
UNITS = (
    *(tuple(SIZE * row + column for column in range(SIZE)) for row in range(SIZE)),
    *(tuple(SIZE * row + column for row in range(SIZE)) for column in range(SIZE)),
    *(
        tuple(SIZE * (2 * down + row) + 2 * right + column for row in range(2) for column in range(2))
        for down in range(2)
        for right in range(2)
    ),
)


def is_solution(grid: str) -> bool:
    """Return whether a grid of 16 digits is complete and has no number twice in a unit."""
    return len(grid) == SIZE * SIZE and all({grid[cell] for cell in unit} == set(DIGITS) for unit in UNITS)


@cache
def all_grids() -> tuple[str, ...]:
    """Return the 288 complete grids."""
    rows = ["".join(row) for row in permutations(DIGITS)]
    grids = [""]
    for _ in range(SIZE):  # row by row, without a number twice in a column
        grids = [
            grid + row
            for grid in grids
            for row in rows
            if all(row[cell % SIZE] != digit for cell, digit in enumerate(grid))
        ]
    return tuple(grid for grid in grids if is_solution(grid))


def solutions(puzzle: str) -> list[str]:
    """Return all solutions of a puzzle, written with "_" for empty cells."""
    known = [(cell, digit) for cell, digit in enumerate(puzzle) if digit != "_"]
    return [grid for grid in all_grids() if all(grid[cell] == digit for cell, digit in known)]


def draw(rng: random.Random) -> Item:
    """Draw a puzzle and one of its solutions."""
    grid = one(rng, all_grids())
    cells = shuffled(rng, range(SIZE * SIZE))
    count, unique = whole(rng, FEWEST, MOST), chance(rng, UNIQUE_SHARE)
    shown, left = set[int](), all_grids()
    for cell in cells:
        if len(shown) >= count and not (unique and len(left) > 1):
            break
        shown.add(cell)
        left = tuple(other for other in left if other[cell] == grid[cell])
    puzzle = "".join(digit if cell in shown else "_" for cell, digit in enumerate(grid))
    return Item(
        NAME, f"{one(rng, ASKS)}\n{lines(puzzle)}", lines(grid), f"sudoku {puzzle}", {"puzzle": puzzle}
    )


def lines(cells: str) -> str:
    """Write a grid as four lines."""
    return "\n".join(cells[start : start + SIZE] for start in range(0, len(cells), SIZE))


def score(item: Item, text: str) -> Scored:
    """Accept every solution that keeps the given cells."""
    grid = "".join(text.split())
    given = item.meta["puzzle"]
    right = is_solution(grid) and all(cell in ("_", found) for cell, found in zip(given, grid, strict=True))
    return Scored(right, grid or None)


TASK = Task(NAME, draw, one_by_one(score))
