"""`unmask compare-runs`: compare two runs on the same samples."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.text.display import plural

if TYPE_CHECKING:
    from unmask.evals.compare import Comparison
    from unmask.evals.significance import Interval

First = Annotated[Path, typer.Argument(metavar="A", help="A run's folder, or its records.jsonl.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="The run to compare with A.")]
Show = Annotated[
    int,
    typer.Option(
        "--show",
        metavar="N",
        min=0,
        help="List up to N sample ids that were lost, and up to N that were gained.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def compare_runs(first: First, second: Second, show: Show = 0, seed: Seed = 0, json: AsJson = False) -> None:
    """Compare two runs of a task: accuracies, their difference and its interval, steps and forwards."""
    from unmask.evals.compare import compare
    from unmask.evals.records import Record, edited_lines, find_records, read_lines

    files = find_records(first), find_records(second)
    changes = _changes(*files)
    comparison = compare(read_lines(files[0], Record), read_lines(files[1], Record), seed=seed)
    for file in files:
        for number in edited_lines(file)[:1]:
            typer.echo(f"note: {file}, line {number} was edited after the run wrote it", err=True)
    if json:
        import json as library

        typer.echo(library.dumps({"configuration": changes, **asdict(comparison)}, allow_nan=False))
        return
    for line in _told(changes):
        typer.secho(line, dim=True)
    _print(comparison, show)


def _changes(first: Path, second: Path) -> dict[str, list[object]]:
    """Return the fields in which the configurations differ; raise if the tasks do."""
    from unmask.evals.folder import read_manifest
    from unmask.evals.manifest import differences

    one, other = read_manifest(first.parent), read_manifest(second.parent)
    if one is None or other is None:
        return {}
    changes: dict[str, list[object]] = {
        name: [a, b] for name, a, b in differences(one.configuration, other.configuration)
    }
    if "task.name" in changes:
        a, b = changes["task.name"]
        raise ValueError(
            f"{first.parent} is a run of {a}, but {second.parent} is one of {b}; compare like with like"
        )
    return changes


def _told(changes: dict[str, list[object]]) -> list[str]:
    """Return a line per change. If the kinds of samplers differ, leave out the fields of the samplers."""
    kinds = changes.get("sampler.kind")
    lines = [] if kinds is None else [f"sampler: {kinds[0]} -> {kinds[1]}"]
    return lines + [
        f"{name}: {a!r} -> {b!r}"
        for name, (a, b) in changes.items()
        if kinds is None or not name.startswith("sampler.")
    ]


def _print(comparison: Comparison, show: int) -> None:
    for label, accuracy, interval in zip("AB", comparison.accuracies, comparison.intervals, strict=True):
        typer.echo(f"{label}: {accuracy:.2%}, 95 % interval {_percent(interval)}")
    typer.echo(
        f"B - A: {100 * comparison.difference:+.2f} points, "
        f"95 % interval {_percent(comparison.difference_interval)} (bootstrap), "
        f"p = {comparison.p_value:.3g} (McNemar, exact)"
    )
    typer.echo(
        f"{plural(comparison.samples, 'sample')}: {len(comparison.lost)} lost, "
        f"{len(comparison.gained)} gained, {plural(comparison.same_texts, 'identical text')}"
    )
    typer.echo(
        f"A takes {comparison.step_ratio:.2f}x the steps "
        f"and {comparison.forward_ratio:.2f}x the forwards of B"
    )
    if comparison.only_first or comparison.only_second:
        only = f"{plural(comparison.only_first, 'sample')} only in A, {comparison.only_second} only in B"
        typer.echo(f"left out: {only}")
    for label, ids in (("lost", comparison.lost), ("gained", comparison.gained)):
        if show and ids:
            more = f" and {len(ids) - show} more" if len(ids) > show else ""
            typer.echo(f"{label}: {', '.join(ids[:show])}{more}")


def _percent(interval: Interval) -> str:
    low, high = interval
    return f"[{100 * low:.2f}, {100 * high:.2f}]"
