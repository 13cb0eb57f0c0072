"""The files of a run: a line per sample, the same in every run, and a line per batch with its times."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from hashlib import sha256
from itertools import chain, repeat
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from unmask.errors import FieldError
from unmask.evals.task import Sample
from unmask.files import read_bytes
from unmask.samplers.wrapper import defaults
from unmask.trace import plain

RECORDS, TIMINGS = "records.jsonl", "timings.jsonl"
# fields that older runs do not store; their defaults change no result
ADDED_FIELDS = ("constraint", "fallback", "min_gap", "next_block_at")


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
    tokens: int  # number of tokens up to the end of the text
    prompt_tokens: int
    finish: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One batch: its time and memory on this machine."""

    batch: int
    rows: int
    seconds: float  # seconds of decoding
    scoring: float  # seconds of scoring
    wall: float  # seconds since the last batch was stored, or since the run was resumed
    peak_memory: int  # bytes so far, on the GPU if there is one, else of the process
    hashes: tuple[str, ...] = ()  # hashes of the batch's lines in records.jsonl; older runs have none


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


def hash_line(line: bytes) -> str:
    """Return a short hash of a line without its line end."""
    return sha256(line.rstrip(b"\n")).hexdigest()[:16]


def to_line(kept: Record | Timing) -> bytes:
    """Return a record as a line of JSON in ASCII."""
    return json.dumps(asdict(kept), allow_nan=False).encode() + b"\n"


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """Read the complete lines of a file; skip an unfinished last line."""
    complete = read_bytes(path).split(b"\n")[:-1]
    return [_read(line, kind, f"{path}, line {number}") for number, line in enumerate(complete, 1)]


def _read(line: bytes, kind: type[Line], where: str) -> Line:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON ({error}); cut the file before this line") from None
    return from_object(content, kind, where)


def from_object(content: Any, kind: type[Line], where: str) -> Line:
    """Return a JSON object as a record; raise unless every field is there and has the right type."""
    names = {item.name for item in fields(kind)}
    needed = {item.name for item in fields(kind) if item.default is MISSING}
    if not isinstance(content, dict) or not needed <= content.keys() <= names:
        wrong = content.keys() - names | needed - content.keys() if isinstance(content, dict) else needed
        raise ValueError(
            f"{where} is not a {kind.__name__.lower()} of this version; missing or unknown: "
            f"{', '.join(sorted(wrong))}"
        )
    for item in fields(kind):
        fits, words = TYPES[str(item.type)]
        if item.name in content and not fits(content[item.name]):
            remedy = "restore the line, or run again in another folder"
            raise FieldError(item.name, content[item.name], f"must be {words}", remedy, where)
    hashes = {"hashes": tuple(content["hashes"])} if "hashes" in content else {}
    return kind(**content | hashes)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {  # type of a field -> its check and description
    "str": (_is_text, "text"),
    "str | None": (lambda value: value is None or _is_text(value), "text or null"),
    "bool": (_is_flag, "true or false"),
    "int": (_is_count, "a whole number >= 0"),
    "float": (_is_amount, "a number >= 0"),
    "Mapping[str, bool]": (
        lambda value: isinstance(value, dict) and all(map(_is_flag, value.values())),
        "an object of true and false",
    ),
    "tuple[str, ...]": (
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        "a list of text",
    ),
}


def edited_lines(file: Path) -> list[int]:
    """Return the numbers of the lines in a records file that were edited after the run wrote them."""
    beside = file.with_name(TIMINGS)
    timings = read_lines(beside, Timing) if beside.is_file() else []
    written = chain.from_iterable(timing.hashes or repeat("", timing.rows) for timing in timings)
    lines = read_bytes(file).split(b"\n")[:-1] if file.is_file() else []
    pairs = enumerate(zip(lines, written, strict=False), 1)
    return [number for number, (line, known) in pairs if known and hash_line(line) != known]


def find_records(place: Path) -> Path:
    """Return the records file of a run, given the file, its folder, or a folder with no other run."""
    if not place.is_dir():
        return place
    if (place / RECORDS).is_file():
        return place / RECORDS
    inside = sorted(place.rglob(RECORDS))
    if len(inside) == 1:
        return inside[0]
    names = [str(file.parent.relative_to(place)) for file in inside]
    hint = f"it has the runs {', '.join(names)}: name one" if names else "name the folder of a run"
    raise ValueError(f"{place} holds no {RECORDS}; {hint}")
