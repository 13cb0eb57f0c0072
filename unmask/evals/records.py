"""The files of a run: a line per sample, the same in every run, and a line per batch with its times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from unmask.evals.task import Sample
from unmask.samplers.wrapper import defaults
from unmask.trace import plain

RECORDS = "records.jsonl"
# fields that runs were stored without; their defaults change no result
ADDED_FIELDS = ("fallback", "min_gap", "next_block_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One sample: its text, whether it is right, and its cost."""

    id: str
    prompt: str  # hash of the sample's prompt
    text: str
    extracted: str | None
    correct: bool
    also: Mapping[str, bool]  # the same text under other scorings
    steps: int
    forwards: int
    forced_share: float  # share of steps in which the fallback acted
    leftovers: int  # tokens filled in after the budget was spent
    tokens: int  # up to the end of the text
    prompt_tokens: int
    finish: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One batch: its time and memory on this machine."""

    batch: int
    rows: int
    seconds: float  # of decoding
    scoring: float  # seconds
    wall: float  # seconds since the last batch was stored, or since the run was resumed
    peak_memory: int  # bytes so far, of the GPU where there is one, else of the process


Line = TypeVar("Line", Record, Timing)


def digest(value: object) -> str:
    """Return a short hash of a JSON value."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def settings_of(value: Any) -> dict[str, Any]:
    """Return the fields of a sampler or a config as JSON values, to compare or name a run by.

    Leave out an added field at its default, so that stored runs keep their names and can be resumed.
    """
    usual = defaults(value)
    return {
        name: setting
        for name, setting in plain(value).items()
        if name not in ADDED_FIELDS or setting != usual[name]
    }


def prompt_hash(sample: Sample) -> str:
    """Return a hash of the sample's prompt."""
    return digest(sample.prompt)


def to_line(kept: Record | Timing) -> bytes:
    """Return a record as a line of JSON in ASCII."""
    return json.dumps(asdict(kept), allow_nan=False).encode() + b"\n"


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Read the complete lines of a file; skip an unfinished last line."""
    complete = path.read_bytes().split(b"\n")[:-1]
    return [_read(line, kind, f"{path}, line {number}") for number, line in enumerate(complete, 1)]


def _read(line: bytes, kind: type[Line], where: str) -> Line:
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON ({error}); cut the file before this line") from None
    names = {item.name for item in fields(kind)}
    if not isinstance(content, dict) or content.keys() != names:
        wrong = names ^ content.keys() if isinstance(content, dict) else names
        raise ValueError(
            f"{where} is not a {kind.__name__.lower()} of this version; missing or unknown: "
            f"{', '.join(sorted(wrong))}"
        )
    return kind(**content)


def find_records(place: Path) -> Path:
    """Return the records file of a run, given its folder or the file itself."""
    if not place.is_dir():
        return place
    if (place / RECORDS).is_file():
        return place / RECORDS
    inside = sorted(file.parent.name for file in place.glob(f"*/{RECORDS}"))
    hint = f"it has the runs {', '.join(inside)}: name one" if inside else "is it the --out of a run?"
    raise ValueError(f"{place} holds no {RECORDS}; {hint}")
