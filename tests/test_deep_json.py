"""JSON that is nested without end gets a sentence that names its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.raises import raises_field
from unmask.errors import FieldError
from unmask.samplers.registry import find_sampler
from unmask.trace import read_trace
from unmask.training.data import read_pairs
from unmask.training.recipe import read_table

READERS: dict[str, Callable[[Path], object]] = {
    "preset.json": lambda path: find_sampler(str(path)),
    "recipe.json": read_table,
    "pairs.jsonl": read_pairs,
    "trace.jsonl": read_trace,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_endless_depth_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"a": ' + "[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=name) as caught:
        READERS[name](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("depth", [100, 500, 900, 950])
def test_a_field_of_a_preset_that_is_nested_deeply_is_named(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "preset.json"
    path.write_text('{"sampler": "less", "fields": {"max_jsd": ' + "[" * depth + "]" * depth + "}}")
    with pytest.raises(ValueError, match=r"max_jsd|preset\.json") as caught:
        find_sampler(str(path))
    assert "\n" not in str(caught.value)


def test_a_value_that_cannot_be_written_down_is_described() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with raises_field("steps"):
        raise FieldError("steps", deep, "must be a whole number")
