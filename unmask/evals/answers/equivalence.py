"""Compare mathematical answers with math-verify, in a separate process."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SHORT_FRACTION = re.compile(r"\\[dtc]?frac\s*(\\[a-zA-Z]+|\w)\s*(\\[a-zA-Z]+|\w)")
BASE = re.compile(r"\d_\{?(\d+)\}?$")
SCRIPT = Path(__file__).with_name("verifier.py")
START_SECONDS = 120.0
PAIR_SECONDS = 15.0  # for calculations that ignore the verifier's own limits


def equivalent(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Return whether each (gold, answer) is equivalent; a pair that takes too long is not."""
    pairs = [(tidied(gold), tidied(answer)) for gold, answer in pairs]
    verdicts = {pair: pair[0] == pair[1] for pair in pairs}
    left = [pair for pair, same in verdicts.items() if not same and _comparable(*pair)]
    while left:
        with _running() as verifier:
            while left:
                pair = left.pop()
                verdict = verifier.ask(pair)
                verdicts[pair] = verdict is True
                if verdict is None:
                    break  # it hangs or died: continue with a new one
    return [verdicts[pair] for pair in pairs]


def tidied(answer: str) -> str:
    """Rewrite an answer for math-verify: "\\frac \\pi4" with braces, no full stop after it."""
    return SHORT_FRACTION.sub(r"\\frac{\1}{\2}", " ".join(answer.split())).rstrip(". ")


def _comparable(gold: str, answer: str) -> bool:
    """Return False for an empty answer, and for numbers in different bases, which math-verify ignores."""
    bases = [BASE.findall(text) for text in (gold, answer)]
    return bool(answer) and (not all(bases) or bases[0] == bases[1])


@dataclass(frozen=True, slots=True)
class _Verifier:
    """A running verifier, which compares one pair at a time."""

    process: subprocess.Popen[str]

    def ask(self, pair: tuple[str, str]) -> bool | None:
        """Return its verdict, or None if it hangs or has died."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(pair) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.line(PAIR_SECONDS)
        return bool(json.loads(line)) if line else None

    def line(self, seconds: float) -> str:
        """Return the next line, empty if none came in time."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else ""


@contextmanager
def _running() -> Iterator[_Verifier]:
    if find_spec("math_verify") is None:
        raise ValueError("scoring MATH needs the package math-verify; pip install 'unmask[eval]'")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            verifier = _Verifier(process)
            if verifier.line(START_SECONDS).strip() != "ready":
                raise RuntimeError(f"math-verify did not start; see why with: {sys.executable} {SCRIPT}")
            yield verifier
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()
