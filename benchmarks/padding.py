"""Count the computed columns that are padding when prompts differ in length, with the real scheduler.

    python -m benchmarks.padding [--rows 8,32,128] [--requests 1000] [--out FILE.json]

No model runs. All rows are always in use: a request that has taken its steps makes room for the next one.
Prompts have 32 to 2,048 tokens, drawn log-uniformly, and answers 256. `shapes` counts the shapes that occur,
each of which is compiled. `captures` counts how often a shape must be captured because it is not among the
last 64.
"""

from __future__ import annotations

import json
import math
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from unmask.serving.scheduler import forward_groups, padded, padded_length

BUCKET, GRAPHS = 64, 64  # the defaults of `unmask.compile`
STEPS = 32  # steps of every request
WAYS = {"plain": None, "compiled": SimpleNamespace(bucket=BUCKET)}
app = typer.Typer()


def prompt_lengths(seed: int = 0, shortest: int = 32, longest: int = 2048) -> Iterator[int]:
    """Yield lengths of prompts, drawn log-uniformly."""
    dice = random.Random(seed)
    while True:
        yield round(math.exp(dice.uniform(math.log(shortest), math.log(longest))))


@dataclass(slots=True)
class Columns:
    """Counts over a simulated run."""

    steps: int = 0
    forwards: int = 0
    useful: int = 0
    computed: int = 0
    captures: int = 0
    shapes: set[tuple[int, int]] = field(default_factory=set)
    _kept: OrderedDict[tuple[int, int], None] = field(default_factory=OrderedDict)

    def add(self, rows: int, length: int) -> None:
        """Count one forward."""
        shape = rows, length
        self.forwards += 1
        self.computed += rows * length
        self.shapes.add(shape)
        self.captures += shape not in self._kept
        self._kept[shape] = None
        self._kept.move_to_end(shape)
        if len(self._kept) > GRAPHS:
            self._kept.popitem(last=False)


def stand_in(length: int, steps: int) -> Any:
    """Return a stand-in for a request, with only the fields that the scheduler reads."""
    run = SimpleNamespace(guidance=0.0)
    return SimpleNamespace(
        length=length, left=steps, cache=None, run=run, request=SimpleNamespace(num_rows=1, length=length)
    )


def simulate(rows: int, requests: int, runner: Any, new_tokens: int = 256) -> dict[str, float]:
    """Serve requests of different lengths, always `rows` at a time, and return what was computed."""
    model: Any = SimpleNamespace(runner=runner, info=SimpleNamespace(grid=None))
    prompts, dice, counts, done = prompt_lengths(), random.Random(1), Columns(), 0
    running = [stand_in(next(prompts) + new_tokens, dice.randint(1, STEPS)) for _ in range(rows)]
    while done < requests:
        counts.steps += 1
        counts.useful += sum(request.length for request in running)
        for group in forward_groups(model, running, alone=False):
            length = padded_length(model, group, None, alone=False)
            counts.add(len(padded(group, model)), length if runner is None else -(-length // BUCKET) * BUCKET)
        for number, request in enumerate(running):
            request.left -= 1
            if not request.left:
                done += 1
                running[number] = stand_in(next(prompts) + new_tokens, STEPS)
    return {
        "padding_share": 1 - counts.useful / counts.computed,
        "forwards_per_step": counts.forwards / counts.steps,
        "shapes": len(counts.shapes),
        "captures_per_request": counts.captures / done,
    }


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| rows | model | padding, of all columns | forwards per step | shapes | captures per request |",
        "|---|---|---|---|---|---|",
    ]
    for rows, ways in results.items():
        for way, run in ways.items():
            lines.append(
                f"| {rows} | {way} | {run['padding_share']:.1%} | {run['forwards_per_step']:.1f} "
                f"| {run['shapes']} | {run['captures_per_request']:.3f} |"
            )
    return "\n".join(lines)


def run_padding(rows: Sequence[int], requests: int) -> dict[str, dict[str, dict[str, float]]]:
    """Simulate every number of rows, for a plain and a compiled model."""
    return {
        str(count): {way: simulate(count, requests, runner) for way, runner in WAYS.items()} for count in rows
    }


@app.command()
def padding(
    rows: Annotated[str, typer.Option(help="Numbers of running requests.")] = "8,16,32,64,128",
    requests: Annotated[int, typer.Option(min=1)] = 1000,
    out: Annotated[Path | None, typer.Option(help="Results file, JSON.")] = None,
) -> None:
    """Count padded columns by simulation."""
    results = run_padding([int(word) for word in rows.split(",")], requests)
    typer.echo(table(results))
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
