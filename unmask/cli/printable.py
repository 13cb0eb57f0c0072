"""Make text safe to print: a model may write anything, including escape sequences."""

from __future__ import annotations

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Spell out control characters, so that none of them reaches the terminal."""
    return text.translate(CONTROLS)
