"""A toy model that writes letters, and every text that its canvas could become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

from tests.toy import Toy

MASK, END = 0, 1


@dataclass(frozen=True)
class Letters:
    """A tokenizer of a few words; the mask and the end are no text."""

    words: tuple[str, ...]

    @property
    def special(self) -> SimpleNamespace:
        return SimpleNamespace(bos=None, pad=None)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            word = max((word for word in self.words[2:] if text.startswith(word)), key=len)
            ids.append(self.words.index(word))
            text = text[len(word) :]
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        return "".join(self.words[token] for token in token_ids)

    def chat(self, messages: object) -> list[int]:
        raise NotImplementedError


@dataclass(frozen=True)
class Writer(Toy):
    """A toy model with a vocabulary of words."""

    words: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> Letters:
        return Letters(self.words)


def writer(*words: str, **settings) -> Writer:
    """A model whose tokens are the mask, the end and these words."""
    vocabulary = ("", "", *words)
    return Writer(vocab_size=len(vocabulary), words=vocabulary, **settings)


def completions(tokens: Sequence[int], model: Writer, closed: Sequence[bool] | None = None):
    """All canvases that the masks of this one can become; behind an end token there are end tokens only.

    A closed mask does not become an end token.
    """
    options = [range(1, model.vocab_size) if token == MASK else (token,) for token in tokens]
    for full in product(*options):
        first = full.index(END) if END in full else len(full)
        if any(token != END for token in full[first:]):
            continue
        chosen = (
            full[column] for column in range(len(full)) if closed and closed[column] and not tokens[column]
        )
        if END not in chosen:
            yield full
