"""Read a benchmark's rows, from files in a folder or from the hub, into samples."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from unmask.evals.task import Sample

Row: TypeAlias = Mapping[str, Any]
Make: TypeAlias = Callable[[int, Row], Sample]  # makes a sample from its place in the set and its row

UNPACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".bz2": bz2.decompress}
DAMAGED = (OSError, EOFError, ValueError, zlib.error)
DATA = "UNMASK_DATA"  # environment variable: the data folder if none is named
REMEDY = f"name the folder that holds the benchmark files with --data or {DATA}"
TIMEOUT = 3.0  # seconds to wait for the hub


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files of a benchmark and its number of rows."""

    file: str  # path in a data folder; the file may also end in .gz or .bz2
    hub: str  # the data set's name on the hub
    configs: tuple[str | None, ...] = (None,)  # configurations, read one after the other
    split: str = "test"
    rows: int
    keep: Callable[[Row], bool] | None = None  # which rows to keep; None: every row


def load_samples(source: Source, make: Make, folder: Path | None) -> list[Sample]:
    """Load every sample, from the folder, else from the one that UNMASK_DATA names, else from the hub."""
    if folder is None and os.environ.get(DATA):
        folder = Path(os.environ[DATA])
    if folder is None:
        where, rows = source.hub, _hub_rows(source)
    else:
        path = _find(Path(folder), source.file)
        where, rows = str(path), _file_rows(path)
    samples: list[Sample] = []
    for number, row in enumerate(rows, 1):
        place = f"{where}, row {number}"
        if _checked(place, _is_kept, source, row):
            samples.append(_checked(place, make, len(samples), row))
    if len(samples) != source.rows:
        raise ValueError(
            f"{where} has {len(samples)} rows for this benchmark, expected {source.rows}; "
            "get the whole set: scores on a part of it cannot be compared"
        )
    return samples


def text_field(row: Row, name: str) -> str:
    """Return a field that must be a text."""
    if not isinstance(row[name], str):
        raise TypeError(f"the field {name!r} must be a text, got {row[name]!r}")
    return str(row[name])


def texts_field(row: Row, name: str, count: int | None = None) -> list[str]:
    """Return a field that must be a list of texts, `count` of them if given."""
    value = row[name]
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise TypeError(f"the field {name!r} must be a list of texts, got {value!r}")
    if count is not None and len(value) != count:
        raise ValueError(f"the field {name!r} must hold {count} texts, got {len(value)}")
    return list(value)


def index_field(row: Row, name: str, count: int) -> int:
    """Return a field that must be a number from 0 to `count` - 1, or such a number as text."""
    value = row[name]
    if isinstance(value, bool) or str(value) not in {str(index) for index in range(count)}:
        raise ValueError(f"the field {name!r} must be one of 0 to {count - 1}, got {value!r}")
    return int(value)


def _is_kept(source: Source, row: Row) -> bool:
    if not isinstance(row, Mapping):
        raise TypeError(f"a row must be an object with fields, got {row!r}")
    return source.keep is None or source.keep(row)


def _checked(place: str, step: Callable[..., Any], *arguments: Any) -> Any:
    """Run a step on a row; an error names the place of the row."""
    try:
        return step(*arguments)
    except KeyError as error:
        raise ValueError(f"{place}: the field {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def _find(folder: Path, file: str) -> Path:
    for ending in UNPACK:
        path = folder / f"{file}{ending}"
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{folder / file} does not exist, nor with .gz or .bz2; {REMEDY}, or none to read from the hub"
    )


def _file_rows(path: Path) -> Iterator[Row]:
    ending = path.suffix if path.suffix in UNPACK else ""
    try:
        content = UNPACK[ending](path.read_bytes())
    except DAMAGED as error:
        raise ValueError(f"{path} cannot be read: {error}; get the file again") from error
    if not path.name.removesuffix(ending).endswith(".jsonl"):
        yield from _parsed(str(path), content)
        return
    for number, line in enumerate(content.splitlines(), 1):
        yield _parsed(f"{path}, row {number}", line)


def _parsed(place: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}; get the file again") from error


def _hub_rows(source: Source) -> Iterator[Row]:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            "reading benchmarks from the hub needs the package datasets; pip install 'unmask[eval]', "
            f"or {REMEDY}"
        ) from error
    with _without_retries(datasets.config, source):
        for config in source.configs:
            try:
                rows = datasets.load_dataset(source.hub, config, split=source.split)
            # datasets raises these without a connection, and for an unknown set
            except (OSError, ValueError) as error:
                raise FileNotFoundError(
                    f"{source.hub} cannot be read from the hub: {error}; {REMEDY}"
                ) from error
            yield from rows


@contextmanager
def _without_retries(config: Any, source: Source) -> Iterator[None]:
    """If the hub does not answer, let datasets use only its cache; it would retry again and again."""
    usual = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = usual or not (Path(source.hub).is_dir() or _answers(config.HF_ENDPOINT))
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = usual


def _answers(url: str) -> bool:
    """Return whether a server answers, even with an error."""
    try:
        urlopen(Request(url, method="HEAD"), timeout=TIMEOUT).close()
    except HTTPError:
        return True
    except (OSError, ValueError):  # ValueError: not the address of a server
        return False
    return True
