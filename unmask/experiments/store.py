"""What experiments keep: a folder while a run is under way, one compressed file once it is done."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from unmask.evals.folder import TIMINGS, append, read_manifest
from unmask.evals.records import RECORDS, Record, Timing, read_lines
from unmask.experiments.runs import Outcome

ENDING = ".json.xz"


class Store:
    """Finished runs and other facts under one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, *parts: str) -> Path:
        """Where a run lies while it is under way."""
        return self.path.joinpath(*map(_safe, parts))

    def read(self, *parts: str) -> Any:
        """What was kept under these names; None: nothing."""
        path = self._file(parts)
        if not path.is_file():
            return None
        try:
            return json.loads(lzma.decompress(path.read_bytes()))
        except (lzma.LZMAError, ValueError, EOFError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it to make the run again") from None

    def keep(self, content: Mapping[str, Any], *parts: str) -> None:
        """Keep content under these names, as a whole or not at all."""
        path = self._file(parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        append(part, lzma.compress(json.dumps(content, allow_nan=False).encode()))
        part.replace(path)

    def outcome(self, *parts: str) -> Outcome | None:
        """A finished run; None: there is none."""
        content = self.read(*parts)
        return None if content is None else unpack(content)

    def finish(self, *parts: str) -> Outcome:
        """Pack the folder of a run that is done, and remove it."""
        folder = self.folder(*parts)
        self.keep(pack(folder), *parts)
        shutil.rmtree(folder)
        outcome = self.outcome(*parts)
        assert outcome is not None, "it was kept just now"
        return outcome

    def _file(self, parts: Sequence[str]) -> Path:
        folder = self.folder(*parts)
        return folder.with_name(folder.name + ENDING)


def pack(folder: Path) -> dict[str, Any]:
    """A run's folder as one object, a list per field: equal things next to each other compress well."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder} holds no run")
    records, timings = read_lines(folder / RECORDS, Record), read_lines(folder / TIMINGS, Timing)
    return {
        "configuration": manifest.configuration,
        "environment": manifest.environment,
        "records": _columns(records, Record),
        "timings": _columns(timings, Timing),
    }


def unpack(content: Mapping[str, Any]) -> Outcome:
    """What `pack` packed."""
    return Outcome(
        records=tuple(Record(**row) for row in _rows(content["records"])),
        timings=tuple(Timing(**row) for row in _rows(content["timings"])),
        configuration=content["configuration"],
        environment=content["environment"],
    )


def _columns(rows: Sequence[Record] | Sequence[Timing], kind: Any) -> dict[str, list[Any]]:
    return {item.name: [getattr(row, item.name) for row in rows] for item in fields(kind)}


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _safe(part: str) -> str:
    """A hub id or a path as one name of a folder."""
    return part.strip("/").replace("/", "--").replace("@", "--") or "model"
