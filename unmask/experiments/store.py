"""Records of experiments: an archive, a file for each record made since, a folder for each run under way.

PATH.tar.xz          packed records, each a JSON file
PATH/KEY.json.xz     a record that is not packed yet; it wins over a packed one of the same key
PATH/KEY/            a run under way
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.evals.folder import append, read_manifest, refuse_edited
from unmask.evals.records import RECORDS, TIMINGS, Record, Timing, from_object, read_lines
from unmask.experiments.runs import Outcome

ENDING = ".json.xz"
ARCHIVE_ENDING = ".tar.xz"


class Store:
    """Finished runs and other measurements, each under a key of several names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive = path.with_name(path.name + ARCHIVE_ENDING)

    def folder(self, *key: str) -> Path:
        """Return the folder of a run under way."""
        return self.path.joinpath(*map(_safe, key))

    def read(self, *key: str) -> Any:
        """Return the content kept under a key, or None if there is none."""
        file = self.path / f"{_name(key)}.xz"
        content = _decompress(file) if file.is_file() else self._packed.get(_name(key))
        return None if content is None else json.loads(content)

    def names(self, *key: str) -> list[str]:
        """Return the last part of every key that has these parts and one more."""
        folder = "/".join(map(_safe, key))
        files = [file.name for file in (self.path / folder).glob(f"*{ENDING}")]
        packed = [name.rpartition("/")[2] for name in self._packed if name.rpartition("/")[0] == folder]
        return sorted({name.removesuffix(".xz").removesuffix(".json") for name in (*files, *packed)})

    def keep(self, content: Mapping[str, Any], *key: str) -> None:
        """Keep content under a key. A kill leaves the whole file or none."""
        _write(self.path / f"{_name(key)}.xz", lzma.compress(json.dumps(content, allow_nan=False).encode()))

    def outcome(self, *key: str) -> Outcome | None:
        """Return a finished run, or None if there is none."""
        content = self.read(*key)
        return None if content is None else from_columns(content, _name(key))

    def finish(self, *key: str) -> Outcome:
        """Turn the folder of a finished run into a record, and return its outcome."""
        folder = self.folder(*key)
        self.keep(to_columns(folder), *key)
        shutil.rmtree(folder)
        outcome = self.outcome(*key)
        assert outcome is not None, "it was kept just now"
        return outcome

    def pack(self) -> int:
        """Move all records into the archive and return how many were moved.

        Equal records give equal bytes. Only one process may pack a store at a time.
        """
        files = sorted(self.path.rglob(f"*{ENDING}"))
        if files:
            names = [file.relative_to(self.path).as_posix().removesuffix(".xz") for file in files]
            added = dict(zip(names, map(_decompress, files), strict=True))
            _write(self.archive, lzma.compress(_tar({**self._packed, **added})))
            self.__dict__.pop("_packed")  # read the new archive next time
            _remove(files, self.path)
        return len(files)

    @cached_property
    def _packed(self) -> dict[str, bytes]:
        """The files of the archive by name."""
        return _untar(_decompress(self.archive)) if self.archive.is_file() else {}


def to_columns(folder: Path) -> dict[str, Any]:
    """Return a run's folder as one object. A list per field compresses better than a line per record."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder} holds no run")
    refuse_edited(folder / RECORDS)
    records, timings = read_lines(folder / RECORDS, Record), read_lines(folder / TIMINGS, Timing)
    return {
        "configuration": manifest.configuration,
        "environment": manifest.environment,
        "records": _columns(records, Record),
        "timings": _columns(timings, Timing),
    }


def from_columns(content: Mapping[str, Any], where: str = "") -> Outcome:
    """Return the outcome that `to_columns` turned into an object. Errors name it `where`."""
    records, timings = (_rows(content[name]) for name in ("records", "timings"))
    return Outcome(
        records=tuple(from_object(row, Record, f"{where}, record {n}") for n, row in enumerate(records, 1)),
        timings=tuple(from_object(row, Timing, f"{where}, batch {n}") for n, row in enumerate(timings, 1)),
        configuration=content["configuration"],
        environment=content["environment"],
    )


def _columns(rows: Sequence[Record] | Sequence[Timing], kind: Any) -> dict[str, list[Any]]:
    # the hashes guard the lines in a run's folder, and a stored record has no lines
    names = [item.name for item in fields(kind) if item.name != "hashes"]
    return {name: [getattr(row, name) for row in rows] for name in names}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _name(key: Sequence[str]) -> str:
    return f"{'/'.join(map(_safe, key))}.json"


def _safe(part: str) -> str:
    """Return a hub id or a path as one file name."""
    return part.strip("/").replace("/", "--").replace("@", "--") or "model"


def _decompress(file: Path) -> bytes:
    try:
        return lzma.decompress(file.read_bytes())
    except lzma.LZMAError as error:
        raise ValueError(f"{file} is damaged ({error}); restore it, or remove it and run again") from None


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    append(part, content)
    part.replace(path)


def _tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive in the order of the names, without dates or owners."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _untar(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = ((entry.name, tar.extractfile(entry)) for entry in tar)
        return {name: file.read() for name, file in members if file is not None}


def _remove(files: Iterable[Path], root: Path) -> None:
    """Remove files, and the folders that are then empty."""
    for file in files:
        file.unlink()
    folders = [path for path in root.rglob("*") if path.is_dir()]
    for folder in (*sorted(folders, reverse=True), root):
        with suppress(OSError):  # a run under way keeps its folder
            folder.rmdir()
