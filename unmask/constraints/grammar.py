"""Hold rows to context-free grammars, left to right: llguidance says which tokens may come next.

Only the first mask of a row is held to the grammar. Tokens after it are committed if they follow without a
gap and the grammar accepts them one after another. All others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from unmask.constraints.bytes import field_of
from unmask.constraints.language import Constraint
from unmask.decoding.bans import Allowed
from unmask.decoding.canvas import Canvas
from unmask.errors import FieldError

# the spaces in the JSON of regular schemas; flexible ones would allow a text of spaces only
SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
LIMITS = {"step_max_items": 2000, "max_items_in_row": 200}  # limits of the parser for each token
DEAD_END = "NoExtension"  # part of the parser's error when no token can follow
LONGEST = 64  # most bytes of a token when a forced text is cut into tokens


@dataclass(slots=True, eq=False)
class Reader:
    """A parser and the tokens it has read. It continues after them, or starts again if they differ."""

    constraint: Constraint
    matcher: Any
    vocab_size: int
    ends: tuple[int, ...]
    read: list[int] = field(default_factory=list)

    @staticmethod
    def of(constraint: Constraint, tokens: Sequence[bytes | None], ends: tuple[int, ...]) -> Reader:
        """Return a new parser of a constraint. Raise if it accepts no text."""
        try:
            llguidance = import_module("llguidance")
        except ModuleNotFoundError:
            remedy = "pip install 'unmask[constraints]'"
            problem = "needs the package llguidance"
            raise FieldError(field_of(constraint), constraint, problem, remedy) from None
        if "lark" in constraint.request:
            grammar = llguidance.LLMatcher.grammar_from_lark(constraint.request["lark"])
        else:
            schema = constraint.request["json_schema"]
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=SPACES)
        limits = llguidance.LLParserLimits(**LIMITS)
        matcher = llguidance.LLMatcher(_tokenizer(tuple(tokens), ends), grammar, log_level=0, limits=limits)
        reader = Reader(constraint, matcher, len(tokens), ends)
        reader.next([])
        return reader

    def next(self, tokens: list[int]) -> Tensor:
        """Return which tokens may follow these, [V] bool. After an end token, only end tokens may follow."""
        ends = list(self.ends)
        if self._ended(tokens):
            return torch.zeros(self.vocab_size, dtype=torch.bool).index_fill(0, torch.tensor(ends), True)
        self._read(tokens)
        packed = torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.uint8)
        allowed = ((packed[:, None] >> torch.arange(8)) & 1).flatten()[: self.vocab_size].bool()
        dead = self.matcher.is_error() and DEAD_END in self.matcher.get_error()
        if not dead:
            self._check()
        if not self.matcher.is_accepting():
            allowed[ends] = False
        if dead or not allowed.any():
            problem = "cannot be written with the tokens of this model"
            raise FieldError("constraint", self.constraint, problem, "use letters that the model knows")
        return allowed

    def accepted(self, tokens: list[int], run: list[int]) -> int:
        """Return how many tokens of a run may follow these."""
        ended = self._ended(tokens)
        if not ended:
            self._read(tokens)
        matcher = self.matcher.deep_copy()
        for place, token in enumerate(run):
            if token in self.ends:
                fits = ended = ended or matcher.is_accepting()
            else:
                fits = not ended and matcher.try_consume_tokens([token]) == 1
            if not fits:
                return place
        return len(run)

    def _ended(self, tokens: list[int]) -> bool:
        return any(token in self.ends for token in tokens)

    def _read(self, tokens: list[int]) -> None:
        if tokens[: len(self.read)] != self.read:
            self.matcher.reset()
            self.read = []
        self.matcher.consume_tokens(tokens[len(self.read) :])
        self._check()
        self.read = tokens

    def _check(self) -> None:
        """Raise if the grammar is wrong, or too ambiguous to follow."""
        if self.matcher.is_error():
            problem = f"cannot be followed: {self.matcher.get_error().splitlines()[0]}"
            remedy = "make it simpler; see docs/constraints.md"
            raise FieldError(field_of(self.constraint), self.constraint, problem, remedy)


@dataclass(frozen=True, slots=True)
class Parsing:
    """The grammars of the rows of a batch, in the decoded window. The host reads the tokens in every step."""

    readers: tuple[Reader | None, ...]  # the parser of each row; None means any text
    texts: tuple[slice, ...]  # the columns of each row's text
    vocab_size: int
    window: slice | None = None

    def take(self, rows: Tensor | slice) -> Parsing:
        """Return the grammars of some rows."""
        numbers = torch.arange(len(self.readers))
        return self._pick(numbers[rows if isinstance(rows, slice) else rows.cpu()].tolist())

    def repeat(self, copies: int) -> Parsing:
        """Return the grammars of rows that are each repeated in place."""
        return self._pick([row for row in range(len(self.readers)) for _ in range(copies)])

    def _pick(self, rows: list[int]) -> Parsing:
        readers, texts = [self.readers[row] for row in rows], [self.texts[row] for row in rows]
        return replace(self, readers=tuple(readers), texts=tuple(texts))

    def to(self, device: torch.device | str) -> Parsing:
        """Return the same grammars, because parsers run on the host."""
        return self

    def focus(self, canvas: Canvas, closed: Tensor | None, window: slice) -> Parsing:
        """Return the grammars for this window."""
        return replace(self, window=window)

    def allowed(self, canvas: Canvas, closed: Tensor | None) -> Allowed:
        """Return the tokens that fit the first mask of each row. All tokens fit other columns."""
        assert self.window is not None, "focus comes first"
        first, width = self.window.start, self.window.stop - self.window.start
        kinds = torch.zeros(len(self.readers), self.vocab_size, dtype=torch.int64)
        classes = torch.ones(len(self.readers), width, 2, dtype=torch.bool)
        for row, (reader, place, tokens) in enumerate(self._places(canvas)):
            if reader is not None and first <= place < min(self.texts[row].stop, self.window.stop):
                kinds[row] = reader.next(tokens)
                classes[row, place - first, 0] = False
        return Allowed(classes, kinds, torch.arange(len(kinds))).to(canvas.tokens.device)

    def admit(
        self,
        canvas: Canvas,
        closed: Tensor | None,
        tokens: Tensor,
        wanted: Tensor,
        confidence: Callable[[], Tensor],
    ) -> Tensor:
        """Return the columns [B, W] to write: the first mask, and the wanted ones that follow it and fit.

        A row that wants nothing gets nothing.
        """
        assert self.window is not None, "focus comes first"
        first, taken = self.window.start, torch.zeros_like(wanted, device="cpu")
        rows = zip(self._places(canvas), self.texts, tokens.tolist(), wanted.tolist(), strict=True)
        for row, ((reader, place, before), text, new, want) in enumerate(rows):
            if reader is None or place >= text.stop:
                taken[row] = torch.tensor(want)
            elif any(want) and first <= place < self.window.stop:
                start, stop = place - first, min(text.stop, self.window.stop) - first
                end = next((column for column in range(start + 1, stop) if not want[column]), stop)
                taken[row, start : start + reader.accepted(before, new[start:end])] = True
        return taken.to(wanted.device)

    def _places(self, canvas: Canvas) -> list[tuple[Reader | None, int, list[int]]]:
        """Return each row's grammar, the column of its first mask, and its text before this mask."""
        found = []
        for reader, text, row in zip(self.readers, self.texts, canvas.tokens.tolist(), strict=True):
            written = row[text]
            length = written.index(canvas.mask_id) if canvas.mask_id in written else len(written)
            found.append((reader, text.start + length, written[:length]))
        return found


@lru_cache(maxsize=4)
def _tokenizer(tokens: tuple[bytes | None, ...], ends: tuple[int, ...]) -> Any:
    """Return the vocabulary as an llguidance tokenizer."""
    llguidance = import_module("llguidance")
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Vocabulary(tokens, ends)), eos_token=list(ends)
    )


class _Vocabulary:
    """A vocabulary with the attributes that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes | None], ends: tuple[int, ...]) -> None:
        self.eos_token_id = ends[0]
        self.tokens = [token or b"" for token in tokens]
        self.special_token_ids = [number for number, token in enumerate(self.tokens) if not token]
        self._numbers = {token: number for number, token in enumerate(self.tokens) if token}

    def __call__(self, text: bytes | str) -> list[int]:
        """Cut a text into the longest tokens, from the left. Stop where no token fits."""
        rest, found = text.encode() if isinstance(text, str) else text, []
        while rest:
            sizes = range(min(len(rest), LONGEST), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._numbers), None)
            if size is None:
                break
            found.append(self._numbers[rest[:size]])
            rest = rest[size:]
        return found
