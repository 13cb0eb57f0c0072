"""The keys and values of many requests in one pool, so that any of them can share a captured forward.

A graph is bound to its memory, while the requests of a server come and go. So their keys and values lie in
pages of one pool. A forward gets the places of its columns: it writes those that run, and gathers all that
they see.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from unmask.decoding.append_cache import AppendCache
from unmask.decoding.transfer import to_device
from unmask.models.trunk import Trunk

PAGE = 64  # columns
FIRST_PAGES = 8  # of a new pool, which doubles when it is full
BLANK, SPARE = 0, PAGE  # columns of two pages that no cache has: one is never written, one is never read


@dataclass(slots=True)
class Tenant:
    """The pages of one cache."""

    number: int  # no other tenant ever has it
    pages: list[int] = field(default_factory=list)

    def places(self, length: int) -> Tensor:
        """Return where its first columns are, [length]."""
        return (torch.tensor(self.pages)[:, None] * PAGE + torch.arange(PAGE)).flatten()[:length]


class KVPool:
    """Pages of keys and values. The pages of a cache are free again when the cache is gone."""

    def __init__(self, model: Trunk) -> None:
        self.model = model
        self.layers: list[tuple[Tensor, Tensor]] = []  # keys and values of all pages, [columns, H, D] each
        self.tenants: weakref.WeakKeyDictionary[AppendCache, Tenant] = weakref.WeakKeyDictionary()
        self._pages = 0  # of every layer; a growth that failed may have left some with more
        self._free: list[int] = []
        self._numbers = count()

    @property
    def columns(self) -> int:
        """How many columns the pool has; graphs that use it are bound to this size."""
        return self._pages * PAGE

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return sum(side.nbytes for sides in self.layers for side in sides)

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    def missing(self, parts: Sequence[tuple[AppendCache, int]]) -> int:
        """Return how many pages caches of these lengths need beyond those that are free."""
        needed = sum(self._wanted(cache, length) for cache, length in dict(parts).items())
        return max(0, needed - len(self._free))

    def _wanted(self, cache: AppendCache, length: int) -> int:
        tenant = self.tenants.get(cache)
        return -(-length // PAGE) - (0 if tenant is None else len(tenant.pages))

    def admit(self, cache: AppendCache, length: int) -> Tenant:
        """Give a cache pages for so many columns, and move what it has stored into them; `grow` before."""
        pages = [self._free.pop() for _ in range(self._wanted(cache, length))]
        if cache in self.tenants:
            self.tenants[cache].pages += pages
            return self.tenants[cache]
        tenant = Tenant(next(self._numbers), pages)
        weakref.finalize(cache, self._free.extend, tenant.pages)
        places = to_device(tenant.places(cache.final), self.device)
        for layer, stored in cache.stored.items():
            for side, own in zip(self.layers[layer], stored, strict=True):
                side.index_copy_(0, places, own[0, :, : cache.final].transpose(0, 1))
        cache.stored = {}
        self.tenants[cache] = tenant
        return tenant

    def give_back(self, cache: AppendCache) -> None:
        """Move the columns of a cache out of the pool: a forward that is not captured needs them."""
        tenant = self.tenants.pop(cache, None)
        if tenant is None:
            return
        places = to_device(tenant.places(cache.final), self.device)
        cache.stored = {}
        for layer, (keys, values) in enumerate(self.layers):
            cache.stored[layer] = keys[places].transpose(0, 1)[None], values[places].transpose(0, 1)[None]
        self._free.extend(tenant.pages)
        tenant.pages.clear()

    def places(self, parts: Sequence[tuple[Tenant, int]], running: int, seen: int) -> tuple[Tensor, Tensor]:
        """Return where a forward writes its last columns, [rows * running], and reads, [rows * seen].

        `parts` are the rows and their lengths. All end in the same column of the batch; a column before or
        behind its row is blank. A row that is there twice, to fill a batch, writes into the spare page.
        """
        numbers = [tenant.number for tenant, _ in parts]
        lengths = torch.tensor([length for _, length in parts])
        longest, most = int(lengths.max()), max(len(tenant.pages) for tenant, _ in parts)
        pages = torch.tensor([tenant.pages + [0] * (most - len(tenant.pages)) for tenant, _ in parts])
        own = torch.arange(seen) - (longest - lengths)[:, None]  # the row's own number of a column
        inside, own = (own >= 0) & (own < lengths[:, None]), own.clamp(0, most * PAGE - 1)
        reads = torch.where(inside, pages.gather(1, own // PAGE) * PAGE + own % PAGE, BLANK)
        is_copy = torch.tensor([number in numbers[:row] for row, number in enumerate(numbers)])
        spare = SPARE + torch.arange(running) % PAGE
        writes = torch.where(is_copy[:, None], spare, reads[:, longest - running : longest])
        return to_device(writes.flatten(), self.device), to_device(reads.flatten(), self.device)

    def grow(self, missing: int) -> None:
        """Make room for more pages, layer by layer; graphs that use the pool must be gone."""
        taken = self._pages or 2  # the first two are the blank and the spare one
        pages = max(FIRST_PAGES, 2 * self._pages, taken + missing)
        shape, weight = self.model.shape, self.model.norm.weight
        for layer in range(shape.layers):
            old = self.layers[layer] if layer < len(self.layers) else ()
            if old and len(old[0]) == pages * PAGE:  # a growth that failed came so far
                continue
            new = [weight.new_zeros(pages * PAGE, shape.key_heads, shape.head_size) for _ in range(2)]
            for side, held in zip(new, old, strict=False):
                side[: self.columns] = held[: self.columns]
            self.layers[layer : layer + 1] = [(new[0], new[1])]
        self._free.extend(range(taken, pages))
        self._pages = pages


def write_and_gather(
    keys: Tensor, values: Tensor, writes: Tensor, reads: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the keys and values of the columns that ran, and return all that they see, [B, H, N, D] each."""
    rows, heads, _, size = k.shape
    for side, new in ((keys, k), (values, v)):
        side.index_copy_(0, writes, new.transpose(1, 2).flatten(0, 1))
    seen = [side.index_select(0, reads).view(rows, -1, heads, size) for side in (keys, values)]
    return seen[0].transpose(1, 2), seen[1].transpose(1, 2)
