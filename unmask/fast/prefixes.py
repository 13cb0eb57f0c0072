"""An index of the pages that hold prompts, so that prompts with the same beginning share pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from torch import Tensor

from unmask.models.layers import PAGE


class PrefixIndex:
    """Maps each prefix of a prompt that fills whole pages of the pool to its last page."""

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Return the pages of the longest known prefix."""
        pages = []
        for key in keys:
            if key not in self._pages:
                break
            pages.append(self._pages[key])
        return pages

    def add(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Add the pages of a prompt. If two pages end the same prefix, keep the first."""
        for key, page in zip(keys, pages, strict=False):
            if key not in self._pages:
                self._pages[key], self._keys[page] = page, key

    def __contains__(self, page: int) -> bool:
        """Whether a page is part of a prefix."""
        return page in self._keys

    def forget(self, page: int) -> None:
        """Forget a page that is about to be overwritten."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._pages[key]


def prefix_keys(prompt: Tensor, padding: int) -> list[bytes]:
    """Return a key for every whole page of a prompt [n]. It identifies all tokens up to the end of the page.

    `padding` is the number of padding columns on the left.
    """
    tokens, key, keys = prompt.tolist(), sha256(str(padding).encode()), []
    for start in range(0, len(tokens) - PAGE + 1, PAGE):
        key.update(str(tokens[start : start + PAGE]).encode())
        keys.append(key.digest())
    return keys
