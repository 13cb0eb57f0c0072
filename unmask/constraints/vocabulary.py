"""The bytes that each token of a model adds to a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

REPLACEMENT = "\ufffd"  # an incomplete character decodes to this


class Decoder(Protocol):
    """A tokenizer that turns tokens into text."""

    def decode(self, token_ids: Iterable[int]) -> str: ...


_known: WeakKeyDictionary[Decoder, dict[int, tuple[bytes | None, ...]]] = WeakKeyDictionary()


def token_bytes(tokenizer: Decoder, vocab_size: int) -> tuple[bytes | None, ...]:
    """Return the bytes of every token, or None for a token that adds nothing to a text.

    A tokenizer may have a method `token_bytes(token)` for this. Otherwise a token that does not decode to
    whole characters has None.
    """
    try:
        kept = _known.setdefault(tokenizer, {})
    except TypeError:  # the tokenizer has no hash or no weak references
        kept = {}
    if vocab_size not in kept:
        own: Callable[[int], bytes | None] | None = getattr(tokenizer, "token_bytes", None)
        read = own or (lambda token: _decoded(tokenizer, token))
        kept[vocab_size] = tuple(read(token) or None for token in range(vocab_size))
    return kept[vocab_size]


def _decoded(tokenizer: Decoder, token: int) -> bytes | None:
    text = tokenizer.decode([token])
    return None if REPLACEMENT in text else text.encode()
