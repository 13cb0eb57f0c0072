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
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from unmask.errors import FieldError
from unmask.evals.batches import EncodedSample
from unmask.evals.manifest import Manifest, differences, hash_prompts, with_samples
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
from unmask.evals.task import Sample
from unmask.files import read_bytes
from unmask.models.checkpoint.files import too_deep

LATER = " | resumed with "  # separates the isolations of a resumed run
MANIFEST, SUMMARY, LOCK = "run.json", "summary.json", ".lock"
REMEDY = "choose another folder (--out) or start anew (`unmask eval --overwrite`)"


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
                    f"{self.path} is in use by another process; wait for it to end, "
                    "or choose another folder (--out)"
                ) from None
            yield

    def clear(self) -> None:
        """Remove a run, its records first."""
        for name in (RECORDS, TIMINGS, SUMMARY, MANIFEST):
            (self.path / name).unlink(missing_ok=True)

    def begin(self, manifest: Manifest, samples: Sequence[EncodedSample], rest: Sequence[Sample]) -> Manifest:
        """Store the manifest of a new run, or check that a stored run has the same settings and samples.

        A stored run may have fewer samples than this one, or also some of the `rest` of the task.
        """
        stored = read_manifest(self.path)
        if stored is None:
            if self._size(RECORDS):
                raise ValueError(f"{self.path} holds records but no {MANIFEST}; {REMEDY}")
            write_json(self.path / MANIFEST, asdict(manifest))
            return manifest
        self._refuse(stored, _for_samples_of(stored, manifest, samples, rest))
        environment = _note_isolation(stored.environment, manifest.environment)
        smaller = len(samples) < stored.configuration["task"]["samples"]
        kept = Manifest(
            configuration=stored.configuration if smaller else manifest.configuration, environment=environment
        )
        if kept != stored:
            write_json(self.path / MANIFEST, asdict(kept))
        return Manifest(configuration=manifest.configuration, environment=environment)

    def _refuse(self, stored: Manifest, configuration: Mapping[str, Any]) -> None:
        changes = differences(stored.configuration, configuration)
        if changes:
            name, first, second = changes[0]
            more = f" (and {len(changes) - 1} more fields)" if len(changes) > 1 else ""
            raise ValueError(
                f"{self.path} holds a run with {name} = {first!r}, but this one has {second!r}{more}; "
                f"{REMEDY}, or resume the stored run with its own settings"
            )

    def resume(self, samples: Sequence[Sample], batch_size: int) -> tuple[list[Record], list[Timing]]:
        """Return the records and timings of whole batches; cut off anything after them."""
        records, timings = self._read(RECORDS, Record), self._read(TIMINGS, Timing)
        self._check_timings(timings, batch_size)
        ends = list(accumulate(timing.rows for timing in timings))
        timings = timings[: bisect_right(ends, len(records))]
        rows = sum(timing.rows for timing in timings)
        if len(records) - rows >= batch_size:
            raise ValueError(
                f"{self.path / TIMINGS} has {rows} samples, but {RECORDS} has {len(records)}; "
                f"put the missing lines back, {REMEDY}"
            )
        records = records[:rows]
        self._check_records(records, samples)
        refuse_edited(self.path / RECORDS)
        self._cut(RECORDS, records)
        self._cut(TIMINGS, timings)
        return records, timings

    def _check_records(self, records: Sequence[Record], samples: Sequence[Sample]) -> None:
        left = {sample.id: sample for sample in samples}
        for number, record in enumerate(records, 1):
            sample = left.pop(record.id, None)
            if sample is None or record.prompt != prompt_hash(sample):
                raise ValueError(
                    f"{self.path / RECORDS}, line {number} is about {record.id}, which this run "
                    f"does not have with that prompt, or only once; {REMEDY}"
                )

    def _check_timings(self, timings: Sequence[Timing], batch_size: int) -> None:
        for number, timing in enumerate(timings):
            fits = 1 <= timing.rows <= batch_size and len(timing.hashes) in (0, timing.rows)
            if timing.batch != number or not fits:
                raise ValueError(
                    f"{self.path / TIMINGS}, line {number + 1} has {timing.rows} rows of "
                    f"batch {timing.batch}, but batch {number} must be there, with {batch_size} rows "
                    "at most and a hash of each; "
                    f"restore the line, {REMEDY}"
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
        return read_bytes(path).splitlines(keepends=True) if path.exists() else []

    def append(self, records: Sequence[Record], timing: Timing) -> None:
        """Store a batch; its records come last, so a batch with records is complete."""
        append(self.path / TIMINGS, to_line(timing))
        append(self.path / RECORDS, b"".join(map(to_line, records)))


def _for_samples_of(
    stored: Manifest, manifest: Manifest, samples: Sequence[EncodedSample], rest: Sequence[Sample]
) -> Mapping[str, Any]:
    """Return the configuration that this run would have with as many samples as the stored one."""
    configuration, count = manifest.configuration, stored.configuration["task"].get("samples")
    if not isinstance(count, int) or not 0 < count <= len(samples) + len(rest):
        return configuration
    first = [*(one.sample for one in samples), *rest][:count]
    if count <= len(samples):
        return with_samples(configuration, first, hash_prompts(samples[:count]))
    # the rest is not encoded; the records have hashes of its prompts
    return with_samples(configuration, first, stored.configuration.get("prompts", ""))


def _note_isolation(stored: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the stored environment, with the new isolation added if it differs."""
    earlier, now = (str(one.get("isolation", "")) for one in (stored, new))
    if not now or now in earlier.split(LATER):
        return stored
    return {**stored, "isolation": earlier + LATER + now}


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
    """Raise if a line of a records file was edited after its run wrote it."""
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
        manifest = Manifest(**json.loads(read_bytes(path)))
        _check_manifest(manifest)
        return manifest
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not the {MANIFEST} of a run ({error}); {REMEDY}") from None


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
