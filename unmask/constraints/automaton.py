"""The automaton of a language over the tokens of a model, kept in memory and on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor

from unmask.constraints.bytes import ByteAutomaton, field_of
from unmask.constraints.language import Constraint
from unmask.errors import FieldError

VERSION = 1  # version of the cached files
NEVER, END = 0, 1  # the class of tokens that no text can have, and the class of end tokens
MAX_STATES = 4000
MAX_BYTES = 512 << 20  # bytes of the tables of one language
CHUNK = 1 << 23  # numbers to process at a time while tokens are read
KEPT = 16  # most automata that stay in memory


@dataclass(frozen=True, slots=True, eq=False)
class TokenAutomaton:
    """How each class of tokens moves each state. State 0 is the start, and the last state is dead.

    Tokens of one class move every state alike. End tokens are not part of a text; see `Machine`.
    """

    next: Tensor  # [S, C] int64
    kinds: Tensor  # [V] int64, the class of each token
    accept: Tensor  # [S] bool
    copies: dict[torch.device, TokenAutomaton] = field(default_factory=dict)  # copies on other devices
    machines: dict[bool, Any] = field(default_factory=dict)  # see `fitting.machine_of`

    def to(self, device: torch.device) -> TokenAutomaton:
        """Return the same automaton on another device, the same copy every time."""
        if self.next.device == device:
            return self
        if device not in self.copies:
            moves, kinds, accept = (part.to(device) for part in (self.next, self.kinds, self.accept))
            self.copies[device] = TokenAutomaton(moves, kinds, accept, {self.next.device: self})
        return self.copies[device]


def tokens_of(
    automaton: ByteAutomaton, tokens: Sequence[bytes | None], ends: Sequence[int]
) -> TokenAutomaton:
    """Return the token automaton of a byte automaton. A token without bytes is never part of a text."""
    trie, place = _trie(tokens)
    states = len(automaton.table)
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (2, states), generator=generator)
    marks = torch.zeros(2, len(tokens), dtype=torch.int64)
    size = max(1, CHUNK // len(trie.bytes))
    for part in torch.split(torch.arange(states), size):
        moved = trie.walk(automaton.table, part)[:, place] + 1
        marks += torch.stack([(each[part, None] * moved).sum(0) for each in factors])
    never = torch.tensor([token is None or not token for token in tokens])
    marks[:, never] = (factors * (automaton.dead + 1)).sum(1)[:, None]
    first_mark, kinds = torch.unique(marks[0], return_inverse=True)
    speaker = torch.zeros(len(first_mark), dtype=torch.int64).scatter(0, kinds, torch.arange(len(tokens)))
    assert torch.equal(marks[1][speaker][kinds], marks[1]), "two columns share a mark"
    few, place = _trie([tokens[token] for token in speaker.tolist()])
    size = max(1, CHUNK // len(few.bytes))
    walks = (few.walk(automaton.table, part)[:, place] for part in torch.split(torch.arange(states), size))
    moves = torch.cat(list(walks)).masked_fill(never[speaker][None], automaton.dead)
    return _with_special_classes(moves, kinds, automaton.accept, ends)


def _with_special_classes(
    moves: Tensor, kinds: Tensor, accept: Tensor, ends: Sequence[int]
) -> TokenAutomaton:
    """Put the classes NEVER and END before the others, and drop those that move no state."""
    dead = len(moves) - 1
    useful = (moves != dead).any(0)
    number = torch.where(useful, 1 + useful.long().cumsum(0), NEVER)
    kinds = number[kinds]
    kinds[torch.tensor(list(ends), dtype=torch.int64)] = END
    nowhere = torch.full((len(moves), 2), dead)
    return TokenAutomaton(torch.cat([nowhere, moves[:, useful]], dim=1), kinds, accept)


@dataclass(frozen=True, slots=True)
class _Trie:
    """The prefixes of all tokens, sorted by length. Node 0 is the empty prefix."""

    parents: Tensor  # [nodes]
    bytes: Tensor  # [nodes], the last byte of each prefix
    levels: list[slice]  # the nodes of each length from 1 on

    def walk(self, table: Tensor, states: Tensor) -> Tensor:
        """Return where each node leads from each state, [states, nodes]."""
        moves, out = table.flatten(), torch.empty(len(self.bytes), len(states), dtype=torch.int64)
        out[0] = states
        for level in self.levels:
            before = out.index_select(0, self.parents[level])
            after = moves.index_select(0, (before * 256 + self.bytes[level][:, None]).flatten())
            out[level] = after.view(before.shape)
        return out.T


def _trie(tokens: Sequence[bytes | None]) -> tuple[_Trie, Tensor]:
    """Return the trie of the tokens and each token's node."""
    node = {b"": 0}
    for length in range(1, 1 + max(len(token or b"") for token in tokens)):
        for token in tokens:
            if token is not None and len(token) >= length:
                node.setdefault(token[:length], len(node))
    names = list(node)
    parents = torch.tensor([node[name[:-1]] for name in names])
    last = torch.tensor([name[-1] if name else 0 for name in names])
    lengths = torch.tensor([len(name) for name in names])
    edges = torch.searchsorted(lengths, torch.arange(1, int(lengths[-1]) + 2)).tolist()
    levels = [slice(left, right) for left, right in pairwise(edges)]
    return _Trie(parents, last, levels), torch.tensor([node[token or b""] for token in tokens])


class Automata:
    """Token automata by constraint and tokenizer: the last few in memory, all of them on disk."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, TokenAutomaton] = OrderedDict()
        self._lock = Lock()

    def get(
        self,
        constraint: Constraint,
        tokens: Sequence[bytes | None],
        ends: Sequence[int],
        stop: Sequence[str] = (),
    ) -> TokenAutomaton:
        """Return the automaton of a constraint. `tokens` has None for tokens that no text may hold."""
        key = _key(constraint.request, _digest(tokens), tuple(ends), tuple(stop))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = _read(key)
        if made is None:
            made = tokens_of(checked(constraint, ByteAutomaton.compile(constraint, stop)), tokens, ends)
            _check_bytes(constraint, made)
            _write(key, made)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made


AUTOMATA = Automata()


def checked(constraint: Constraint, automaton: ByteAutomaton) -> ByteAutomaton:
    """Return the automaton; raise if it has too many states."""
    if automaton.dead > MAX_STATES:
        problem = f"is too large: it must have at most {MAX_STATES} states"
        raise FieldError(field_of(constraint), automaton.dead, problem, "make it simpler or shorter")
    return automaton


def _check_bytes(constraint: Constraint, made: TokenAutomaton) -> None:
    states, classes = made.next.shape
    size = 8 * states * classes + 8 * states * states
    if size > MAX_BYTES:
        problem = f"is too large: its tables must take at most {MAX_BYTES >> 20} MiB"
        raise FieldError(field_of(constraint), f"{size >> 20} MiB", problem, "make it simpler or shorter")


def _digest(tokens: Sequence[bytes | None]) -> str:
    return hashlib.sha256(b"".join(b"-" if t is None else b"%d:%b" % (len(t), t) for t in tokens)).hexdigest()


def _key(*parts: Any) -> str:
    return hashlib.sha256(repr((VERSION, parts)).encode()).hexdigest()


def cache_folder() -> Path:
    """Return the folder of the automata on disk: UNMASK_CACHE, or the user's cache folder."""
    base = os.environ.get("UNMASK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return (Path(base) if base else Path(home) / "unmask") / "constraints"


def _read(key: str) -> TokenAutomaton | None:
    """Return an automaton from disk, or None if there is none that can be read."""
    try:
        stored = cast("dict[str, Tensor]", torch.load(cache_folder() / f"{key}.pt", weights_only=True))
        return TokenAutomaton(stored["next"].long(), stored["kinds"].long(), stored["accept"])
    except (OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError):
        return None
    except Exception as error:  # a damaged file, for which pickle raises its own errors
        if type(error).__module__ not in ("_pickle", "pickle", "zipfile"):
            raise
        return None


def _write(key: str, made: TokenAutomaton) -> None:
    """Store an automaton. Do nothing if the folder cannot be written."""
    with suppress(OSError, RuntimeError):
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        os.close(handle)
        parts = {"next": made.next.int(), "kinds": made.kinds.int(), "accept": made.accept}
        torch.save(parts, temporary)
        os.replace(temporary, folder / f"{key}.pt")
