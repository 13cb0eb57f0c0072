"""Processes as /proc shows them."""

from __future__ import annotations

from pathlib import Path


def descendants(ancestor: int, title: bytes = b"") -> set[int]:
    """The processes below this one whose title begins so."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if line.startswith(title) and ancestor in _ancestors(int(folder.name)):
            found.add(int(folder.name))
    return found


def _ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        try:
            status = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            break
        process = int(status.rpartition(")")[2].split()[1])
        found.append(process)
    return found
