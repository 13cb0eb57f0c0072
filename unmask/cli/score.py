"""`unmask score`: judge stored texts again, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import complete
from unmask.cli.isolation import UnsafeCode, check_isolation
from unmask.cli.options import DataFolder
from unmask.cli.printable import printable
from unmask.files import write_bytes
from unmask.text.display import plural

if TYPE_CHECKING:
    from unmask.evals.records import Record
    from unmask.evals.task import Task

Place = Annotated[
    Path, typer.Argument(metavar="FILE_OR_FOLDER", help="A run's folder, or its records.jsonl.")
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        show_default="the run's own",
        help="Judge with the scoring of this task.",
        autocompletion=complete.tasks,
    ),
]
Protocol = Annotated[
    str | None, typer.Option("--protocol", show_default="the run's own", help="Judge under this protocol.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the records with their new verdicts, and FILE.run.json."
    ),
]
Show = Annotated[int, typer.Option("--show", metavar="N", min=0, help="List up to N changed samples.")]


def score(
    place: Place,
    task: TaskName = None,
    protocol: Protocol = None,
    data: DataFolder = None,
    out: Out = None,
    show: Show = 10,
    unsafe_code: UnsafeCode = False,
) -> None:
    """Judge the texts of a run again and list the changes."""
    from unmask.evals.records import Record, edited_lines, find_records, read_lines, to_line
    from unmask.evals.rescore import rescore
    from unmask.evals.run import load_samples

    file = find_records(place)
    records = read_lines(file, Record)
    if not records:
        raise ValueError(f"{file} holds no complete record; there is nothing to score")
    judging = _task(file, task, protocol)
    isolation = check_isolation([judging], unsafe=unsafe_code)
    rescored = rescore(judging, load_samples(judging, data), records)
    if rescored.other_prompts:
        typer.echo(
            f"note: {judging.name} ({judging.protocol}) now has another prompt for "
            f"{plural(len(rescored.other_prompts), 'text')}, such as {rescored.other_prompts[0]}",
            err=True,
        )
    for number in edited_lines(file)[: max(1, show)]:
        typer.echo(f"note: {file}, line {number} was edited after the run wrote it", err=True)
    typer.echo(
        f"{judging.name} ({judging.protocol}, version {judging.version}), {plural(len(records), 'sample')}"
    )
    _print_accuracies(rescored.before, rescored.after)
    _print_changes(rescored.changed, show)
    if out is not None:
        write_bytes(out, b"".join(map(to_line, rescored.after)))
        _write_origin(out, file, judging, isolation)
        typer.secho(f"wrote {out}", dim=True, err=True)


def _task(file: Path, name: str | None, protocol: str | None) -> Task:
    """Return the task that judges: the run's own, unless the user names another."""
    from unmask.evals import get_task
    from unmask.evals.folder import read_manifest

    manifest = read_manifest(file.parent)
    if manifest is None:
        if name is None:
            raise ValueError(f"{file} has no run.json beside it; name its task with --task")
        return get_task(name, protocol)
    own = manifest.configuration["task"]
    same = name is None or name == own["name"]
    return get_task(name or own["name"], protocol or (own["protocol"] if same else None))


def _write_origin(out: Path, file: Path, task: Task, isolation: str) -> None:
    """Write the task that judged the records, and the isolation of their programs, beside them."""
    from datetime import datetime, timezone

    from unmask import __version__
    from unmask.evals.folder import write_json

    judged = {"name": task.name, "protocol": task.protocol, "version": task.version}
    environment = {
        **({"isolation": isolation} if isolation else {}),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "unmask": __version__,
    }
    content = {"records": str(file), "task": judged, "environment": environment}
    write_json(out.with_name(f"{out.name}.run.json"), content)


def _print_accuracies(before: Sequence[Record], after: Sequence[Record]) -> None:
    from unmask.evals.summary import other_accuracies

    old, new = (sum(record.correct for record in records) / len(records) for records in (before, after))
    typer.echo(f"accuracy {old:.2%} -> {new:.2%}")
    earlier = other_accuracies(before)
    for name, accuracy in other_accuracies(after).items():
        was = f"{earlier[name]:.2%}" if name in earlier else "-"
        typer.echo(f"  {name} {was} -> {accuracy:.2%}")


def _print_changes(changed: Sequence[tuple[Record, Record]], show: int) -> None:
    verdicts = [(old, new) for old, new in changed if old.correct != new.correct]
    others = len(changed) - len(verdicts)
    line = f"{plural(len(verdicts), 'verdict')} changed"
    typer.echo(
        line + (f"; same verdict but another extracted answer: {plural(others, 'text')}" if others else "")
    )
    for old, new in [*verdicts, *(pair for pair in changed if pair not in verdicts)][:show]:
        typer.echo(printable(f"  {old.id}: {_verdict(old)} -> {_verdict(new)}"))


def _verdict(record: Record) -> str:
    return f"{'right' if record.correct else 'wrong'} ({record.extracted!r})"
