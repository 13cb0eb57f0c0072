"""Files that a user names are read within bounds, and errors name them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unmask import make_sampler
from unmask.evals.records import Record, read_lines
from unmask.files import read_bytes, read_utf8, write_bytes
from unmask.trace import read_trace

ENDLESS = Path("/dev/zero")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(file, 5) == b"12345"
    with pytest.raises(ValueError, match="file has more than 4 bytes"):
        read_bytes(file, 4)


def test_text_that_is_not_utf8_is_refused_with_the_name_of_its_file(tmp_path: Path) -> None:
    (file := tmp_path / "latin1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"latin1\.txt is not UTF-8"):
        read_utf8(file)


def test_a_full_disk_is_reported_with_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="/dev/full"):
        write_bytes(Path("/dev/full"), b"x")


def test_a_file_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (preset := tmp_path / "preset.json").symlink_to(ENDLESS)
    with pytest.raises(ValueError, match=r"preset\.json"):
        make_sampler(str(preset))
    monkeypatch.setattr(sys.modules["unmask.trace.replay"], "LARGEST", 1 << 20)  # the real one takes a second
    with pytest.raises(ValueError, match="/dev/zero has more than"):
        read_trace(ENDLESS)
    (records := tmp_path / "records.jsonl").symlink_to(ENDLESS)
    with pytest.raises(ValueError, match=r"records\.jsonl has more than"):
        read_lines(records, Record)
