"""Read and write files that a user names: reading is bounded, and errors name the file."""

from __future__ import annotations

from pathlib import Path

LARGEST = 1 << 30  # bytes


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file. Raise if it has more than `most` bytes, as /dev/zero has."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most} bytes; name another file")
    return content


def read_utf8(path: Path, most: int = LARGEST) -> str:
    """Return the text of a file. Raise if it is not UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from None


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file. An error names it, also on a full disk."""
    try:
        path.write_bytes(content)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
