"""The automaton of a language over bytes: compiled in a separate process, then minimized."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.constraints.language import Choice, Constraint, Grammar, JSONSchema
from unmask.errors import FieldError

COMPILER = Path(__file__).with_name("compiler.py")
SECONDS = 20.0  # time limit of the compiler
SUPPORTED = r"leave out lookaround, backreferences, word boundaries, \A and \Z"


@dataclass(frozen=True, slots=True)
class ByteAutomaton:
    """An automaton over bytes. State 0 is the start, and nothing is accepted from the last state, S."""

    table: Tensor  # [S + 1, 256] int64
    accept: Tensor  # [S + 1] bool

    @property
    def dead(self) -> int:
        return len(self.table) - 1

    @staticmethod
    def compile(constraint: Constraint, stop: Sequence[str] = ()) -> ByteAutomaton:
        """Return the smallest automaton of the texts that fit and hold no stop string."""
        field = field_of(constraint)
        answer = _ask(constraint, field)
        if "problem" in answer:
            raise FieldError(field, _shown(constraint), *_explained(answer["problem"], answer["message"]))
        flat = torch.frombuffer(bytearray(base64.b64decode(answer["table"])), dtype=torch.int32)
        table = flat.view(-1, 256).long()
        dead = len(table)
        table = torch.cat([table.masked_fill(table < 0, dead), torch.full((1, 256), dead)])
        accept = torch.zeros(dead + 1, dtype=torch.bool)
        accept[answer["accept"]] = True
        automaton = ByteAutomaton(table, accept)
        for text in stop:
            automaton = automaton.minimized().without(text.encode())
        automaton = automaton.minimized()
        if automaton.dead == 0:
            problem = "matches no text" + (" without a stop string" if stop else "")
            raise FieldError(field, _shown(constraint), problem)
        return automaton

    def without(self, text: bytes) -> ByteAutomaton:
        """Return the automaton of the texts of this one that do not hold `text`."""
        seen, full = _progress(text), len(text)
        count, dead = len(self.table), self.dead
        # states are pairs of a state of this automaton and how much of the text was just read
        states = self.table[:, None, :] * full + seen[None]
        gone = (self.table == dead)[:, None, :] | (seen == full)[None]
        table = states.masked_fill(gone, count * full).flatten(0, 1)
        table = torch.cat([table, torch.full((1, 256), count * full)])
        return ByteAutomaton(table, torch.cat([self.accept.repeat_interleave(full), torch.tensor([False])]))

    def minimized(self) -> ByteAutomaton:
        """Return the smallest automaton of the same language."""
        alive = self.accept.clone()
        while True:  # states that cannot reach an accepting one count as dead
            more = alive | alive[self.table].any(-1)
            if torch.equal(more, alive):
                break
            alive = more
        if not alive[0]:
            return ByteAutomaton(torch.zeros(1, 256, dtype=torch.int64), torch.zeros(1, dtype=torch.bool))
        # drop equal columns, and tell different rows apart by sums with random factors
        columns = torch.unique(self.table, dim=1)
        factors = torch.randint(-(2**62), 2**62, (columns.shape[1] + 1,), generator=torch.Generator())
        label, count = torch.where(alive, 1 + self.accept.long(), 0), 0
        while True:  # states with the same label and the same moves stay together
            moves = (label[columns] * factors[1:]).sum(-1) + label * factors[0]
            names, finer = torch.unique(moves, return_inverse=True)
            if len(names) == count:
                break
            label, count = finer, len(names)
        speaker = torch.zeros(count, dtype=torch.int64).scatter(0, label, torch.arange(len(label)))
        assert torch.equal(label[columns[speaker]][label], label[columns]), "two rows share a sum"
        return self._merged(label, alive)

    def _merged(self, label: Tensor, alive: Tensor) -> ByteAutomaton:
        """Return the automaton with one state for each label that the start reaches."""
        first: dict[int, int] = {}
        labels = label.tolist()
        for state, name in enumerate(labels):
            first.setdefault(name, state)
        number, queue = {labels[0]: 0}, deque([labels[0]])
        rows: list[list[int]] = []
        while queue:
            row = self.table[first[queue.popleft()]]
            targets = torch.where(alive[row], label[row], -1).tolist()
            for name in dict.fromkeys(targets):
                if name >= 0 and name not in number:
                    number[name] = len(number)
                    queue.append(name)
            rows.append(targets)
        number[-1] = dead = len(number)
        table = torch.tensor([[number[name] for name in row] for row in rows] + [[dead] * 256])
        accept = [bool(self.accept[first[name]]) for name in number if name >= 0] + [False]
        return ByteAutomaton(table, torch.tensor(accept))


def _progress(text: bytes) -> Tensor:
    """Return how many bytes of a text match after a next byte, by how many matched before, [length, 256]."""
    table = torch.zeros(len(text), 256, dtype=torch.int64)
    table[0, text[0]] = 1
    fallback = 0  # length of the longest proper suffix of the bytes read that is also a prefix of the text
    for read in range(1, len(text)):
        table[read] = table[fallback]
        fallback = int(table[fallback, text[read]])
        table[read, text[read]] = read + 1
    return table


def field_of(constraint: Constraint) -> str:
    """Return the name of a constraint in error messages."""
    if isinstance(constraint, Choice):
        return "choice"
    if isinstance(constraint, Grammar):
        return "grammar"
    return "json_schema" if isinstance(constraint, JSONSchema) else "regex"


def _shown(constraint: Constraint) -> object:
    return (
        next(iter(constraint.request.values())) if not isinstance(constraint, Choice) else constraint.options
    )


def _explained(kind: str, message: str) -> tuple[str, str]:
    """Return what is wrong with a language that the compiler refused, and what to do about it."""
    if kind == "limit":
        return f"cannot be compiled, because {message}", "make it simpler or shorter"
    if kind == "schema":
        return f"cannot be used, because {message}", "change the pattern"
    reason = message.removeprefix("Failed to build DFA ").partition(":")[0]
    return f"uses a feature of regular expressions that is not supported ({reason})", SUPPORTED


def _ask(constraint: Constraint, field: str) -> dict[str, Any]:
    if find_spec("outlines_core") is None:
        remedy = "pip install 'unmask[constraints]'"
        raise FieldError(field, _shown(constraint), "needs the package outlines-core", remedy)
    try:
        done = subprocess.run(
            [sys.executable, str(COMPILER)],
            input=json.dumps(constraint.request),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"problem": "limit", "message": f"it takes more than {SECONDS:.0f} seconds"}
    if done.returncode:  # a library that gets no memory ends its process
        return {"problem": "limit", "message": "it needs too much memory"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
