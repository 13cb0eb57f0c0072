"""A run's folder: batches are appended in order, and a killed run can be resumed.

run.json       the configuration and the machine
records.jsonl  a line per sample, the same in every run
timings.jsonl  a line per batch
summary.json   written at the end
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.errors import FieldError
from unmask.evals.batches import EvalBatch
from unmask.evals.manifest import Manifest, differences
from unmask.evals.records import (
    RECORDS,
    TIMINGS,
    Record,
    Timing,
    edited_lines,
    prompt_hash,
    read_lines,
    to_line,
)
from unmask.models.checkpoint.files import too_deep

LATER = " | resumed with "  # between the isolations of a run
MANIFEST, SUMMARY, LOCK = "run.json", "summary.json", ".lock"


class RunFolder:
    """The folder of a run; one process holds it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder; the lock ends with this process, even if it is killed."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.path} is in use by another process; wait for it to end, or choose another folder"
                ) from None
            yield

    def begin(self, manifest: Manifest) -> Manifest:
        """Return the stored manifest, which must agree with this one, or store this one."""
        stored = read_manifest(self.path)
        if stored is None:
            if self._size(RECORDS):
                raise ValueError(f"{self.path} holds records but no {MANIFEST}; choose another folder")
            write_json(self.path / MANIFEST, asdict(manifest))
            return manifest
        self._refuse(stored, manifest)
        return self._note_isolation(stored, manifest)

    def _note_isolation(self, stored: Manifest, new: Manifest) -> Manifest:
        """Store if the rest of the run isolates its programs in another way."""
        earlier, now = (str(one.environment.get("isolation", "")) for one in (stored, new))
        if not now or now in earlier.split(LATER):
            return stored
        environment = {**stored.environment, "isolation": earlier + LATER + now}
        noted = Manifest(configuration=stored.configuration, environment=environment)
        write_json(self.path / MANIFEST, asdict(noted))
        return noted

    def _refuse(self, stored: Manifest, new: Manifest) -> None:
        changes = differences(stored.configuration, new.configuration)
        if changes:
            name, first, second = changes[0]
            more = f" (and {len(changes) - 1} more fields)" if len(changes) > 1 else ""
            raise ValueError(
                f"{self.path} holds a run with {name} = {first!r}, but this one has {second!r}{more}; "
                "choose another folder, or resume the stored run with its own settings"
            )

    def resume(self, batches: Sequence[EvalBatch]) -> tuple[list[Record], list[Timing]]:
        """Return the records and timings of whole batches; cut off anything after them."""
        records = self._read(RECORDS, Record)
        done = _whole_batches(len(records), batches)
        records = records[: sum(len(batch.samples) for batch in batches[:done])]
        self._check(records, batches)
        timings = self._read(TIMINGS, Timing)[:done]
        if len(timings) < done:
            raise ValueError(
                f"{self.path / TIMINGS} has {len(timings)} batches, but {RECORDS} has {done}; "
                "put the missing lines back, or choose another folder"
            )
        self._check_batches(timings, batches)
        refuse_edited(self.path / RECORDS)
        self._cut(RECORDS, records)
        self._cut(TIMINGS, timings)
        return records, timings

    def _check(self, records: Sequence[Record], batches: Sequence[EvalBatch]) -> None:
        samples = (one.sample for batch in batches for one in batch.samples)
        for number, (record, sample) in enumerate(zip(records, samples, strict=False), 1):
            if (record.id, record.prompt) != (sample.id, prompt_hash(sample)):
                raise ValueError(
                    f"{self.path / RECORDS}, line {number} is about {record.id}, but this run has "
                    f"{sample.id} there; choose another folder"
                )

    def _check_batches(self, timings: Sequence[Timing], batches: Sequence[EvalBatch]) -> None:
        for number, (timing, batch) in enumerate(zip(timings, batches, strict=False), 1):
            if (timing.batch, timing.rows) != (batch.number, len(batch.samples)):
                raise ValueError(
                    f"{self.path / TIMINGS}, line {number} has {timing.rows} rows of batch {timing.batch}, "
                    f"but this run has {len(batch.samples)} of batch {batch.number} there; "
                    "restore the line, or choose another folder"
                )

    def _read(self, name: str, kind: Any) -> list[Any]:
        path = self.path / name
        return read_lines(path, kind) if path.exists() else []

    def _size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def _cut(self, name: str, kept: Sequence[Record | Timing]) -> None:
        """Cut a file after its first `len(kept)` lines."""
        size = sum(len(line) for line in self._lines(name)[: len(kept)])
        if size < self._size(name):
            os.truncate(self.path / name, size)

    def _lines(self, name: str) -> list[bytes]:
        path = self.path / name
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    def append(self, records: Sequence[Record], timing: Timing) -> None:
        """Store a batch; its records come last, so a batch with records is complete."""
        append(self.path / TIMINGS, to_line(timing))
        append(self.path / RECORDS, b"".join(map(to_line, records)))


def _whole_batches(records: int, batches: Sequence[EvalBatch]) -> int:
    """Return how many batches this many records fill."""
    filled = 0
    for number, batch in enumerate(batches):
        filled += len(batch.samples)
        if filled > records:
            return number
    return len(batches)


def append(path: Path, content: bytes) -> None:
    """Append to a file and flush it to the disk; undo a write that fails halfway."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab", buffering=0) as file:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, before)
        raise OSError(error.errno, error.strerror, str(path)) from error


def refuse_edited(file: Path) -> None:
    """Raise if a line of a records file is not as its run wrote it."""
    for number in edited_lines(file)[:1]:
        raise ValueError(
            f"{file}, line {number} was edited after the run wrote it; restore the line, "
            "or judge all texts again with `unmask score`"
        )


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a run's folder, or None if there is none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = Manifest(**json.loads(path.read_text(encoding="utf-8")))
        _check_manifest(manifest)
        return manifest
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not the {MANIFEST} of a run ({error}); choose another folder") from None


def _check_manifest(manifest: Manifest) -> None:
    for name in ("configuration", "environment"):
        content = getattr(manifest, name)
        if not isinstance(content, dict) or too_deep(content):
            raise FieldError(name, content, "must be an object, and not nested deeply")
    task = manifest.configuration.get("task")
    if not isinstance(task, dict) or not all(isinstance(task.get(key), str) for key in ("name", "protocol")):
        raise FieldError("configuration.task", task, "must have a name and a protocol")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a whole file or none of it."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    append(part, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())
    part.replace(path)
