"""A pool for the keys and values of many requests, so that any of them can share a captured forward.

A graph is bound to its memory, while the requests of a server come and go. So their keys and values are
stored in pages of one pool. A forward gets the pages of its rows. It writes the columns that run, and its
queries read the pages that they see. Prompts with the same beginning share pages.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unmask.decoding.append_cache import AppendCache
from unmask.decoding.transfer import to_device
from unmask.fast.prefixes import PrefixIndex, prefix_keys
from unmask.models.layers import PAGE, Pages
from unmask.models.trunk import Trunk
from unmask.types import BlockGrid

FIRST_PAGES = 8  # pages of a new pool, which doubles when it is full
RESERVED_PAGES = 2  # the first is blank and never written, the second is never read
SPARE = PAGE  # the first column of the second page, where unneeded writes go


class KVPool:
    """Pages of keys and values. A page is free again when the caches that use it are gone."""

    def __init__(self, model: Trunk) -> None:
        self.model = model
        self.layers: list[tuple[Tensor, Tensor]] = []  # keys and values of all pages, [columns, H, D] each
        self.tenants: weakref.WeakKeyDictionary[AppendCache, list[int]] = weakref.WeakKeyDictionary()
        self._pages = 0  # pages of every layer; a failed growth may have left some layers with more
        self._free: OrderedDict[int, None] = OrderedDict()  # free pages, in the order in which they are taken
        self._users: Counter[int] = Counter()  # number of caches that use each page
        self._left: list[list[int]] = []  # pages of deleted caches; another thread may add some
        self._prefixes = PrefixIndex()  # the prefixes in used pages, and in free pages until they are taken
        self._keys: weakref.WeakKeyDictionary[AppendCache, list[bytes]] = weakref.WeakKeyDictionary()

    @property
    def columns(self) -> int:
        """Number of columns in the pool. Graphs that use it are bound to this size."""
        return self._pages * PAGE

    @property
    def num_bytes(self) -> int:
        """Memory of the pool in bytes."""
        return sum(side.nbytes for sides in self.layers for side in sides)

    @property
    def room(self) -> int:
        """Memory in bytes of all pages that caches can use."""
        return max(0, self._pages - RESERVED_PAGES) * self.page_bytes

    @property
    def page_bytes(self) -> int:
        """Memory of one page in bytes."""
        shape = self.model.shape
        column = 2 * shape.layers * shape.key_heads * shape.head_size
        return PAGE * column * self.model.norm.weight.element_size()

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    def missing(self, parts: Sequence[tuple[AppendCache, int]]) -> int:
        """Return how many pages caches of these lengths need beyond the free ones."""
        while self._left:
            self._release(self._left.pop())
        needed = sum(self._wanted(cache, length) for cache, length in dict(parts).items())
        return max(0, needed - len(self._free))

    def _wanted(self, cache: AppendCache, length: int) -> int:
        return max(0, count_pages(length) - len(self.tenants.get(cache, ())))

    def begin(self, cache: AppendCache, prompt: Tensor, padding: int) -> None:
        """Give a new cache the pages of an earlier prompt with the same beginning, which need not run again.

        `prompt` [n] is on the host, and its last column ends a block. Its first `padding` columns are
        padding.
        """
        grid = self.model.info.grid
        assert grid is not None, "only models that attend in blocks have such caches"
        if PAGE % grid.length or grid.offset:
            return  # a block may begin in one page and end in the next
        self._keys[cache] = prefix_keys(prompt, padding)
        pages = self._prefixes.find(self._keys[cache])
        if pages:
            self._add(cache, pages)
            cache.final = PAGE * len(pages)

    def forget_prefixes(self) -> None:
        """Stop sharing pages of earlier prompts, because the weights may have changed."""
        self._prefixes = PrefixIndex()

    def admit(self, cache: AppendCache, length: int) -> None:
        """Give a cache pages for `length` columns. Call `grow` first if pages are missing."""
        assert not cache.stored, "its keys and values are not in the pool"
        self._add(cache, [self._take() for _ in range(self._wanted(cache, length))])
        if cache.final >= PAGE * len(self._keys.get(cache, ())):  # the prompt has run without broken logits
            self._prefixes.add(self._keys.pop(cache, ()), self.tenants[cache])

    def _take(self) -> int:
        """Take a free page."""
        page, _ = self._free.popitem(last=False)
        self._prefixes.forget(page)
        return page

    def _add(self, cache: AppendCache, pages: list[int]) -> None:
        """Record that a cache uses these pages."""
        if cache not in self.tenants:
            self.tenants[cache] = []
            weakref.finalize(cache, self._left.append, self.tenants[cache])
        self.tenants[cache] += pages
        for page in pages:
            self._users[page] += 1
            self._free.pop(page, None)

    def _release(self, pages: list[int]) -> None:
        """Free the pages of a cache that no other cache uses."""
        self._users.subtract(pages)
        for page in reversed(pages):  # so that the end of a prefix is taken before its beginning
            if not self._users[page]:
                self._free[page] = None
                if page not in self._prefixes:
                    self._free.move_to_end(page, last=False)  # no prompt can share it, so take it next
        pages.clear()

    def table(self, parts: Sequence[tuple[AppendCache, int]]) -> Tensor:
        """Return each row's length, number of final columns and pages, [rows, 2 + pages].

        A row that appears again to fill a batch must write nothing, so all its columns count as final.
        """
        most = max(len(self.tenants[cache]) for cache, _ in parts)
        table, before = [], set()
        for cache, length in parts:
            pages = self.tenants[cache]
            final = length if cache in before else cache.final
            table.append([length, final, *pages, *[0] * (most - len(pages))])
            before.add(cache)
        return to_device(torch.tensor(table), self.device)

    def grow(self, missing: int) -> None:
        """Add the missing pages and some spare ones. Graphs that use the pool must be gone."""
        self.resize(max(FIRST_PAGES, 2 * self._pages, max(self._pages, RESERVED_PAGES) + missing))

    def resize(self, pages: int) -> None:
        """Enlarge the pool layer by layer. Graphs that use it must be gone."""
        shape, weight = self.model.shape, self.model.norm.weight
        for layer in range(shape.layers):
            old = self.layers[layer] if layer < len(self.layers) else ()
            if old and len(old[0]) == pages * PAGE:  # a growth that failed got this far
                continue
            new = [weight.new_zeros(pages * PAGE, shape.key_heads, shape.head_size) for _ in range(2)]
            for side, held in zip(new, old, strict=False):
                side[: self.columns] = held[: self.columns]
            self.layers[layer : layer + 1] = [(new[0], new[1])]
        self._free.update(dict.fromkeys(range(max(self._pages, RESERVED_PAGES), pages)))
        self._pages = pages


def count_pages(columns: int) -> int:
    """Return how many pages this many columns of a row take."""
    return -(-columns // PAGE)


class PlacedColumns(NamedTuple):
    """The columns of a forward. Every row runs the same number of its last columns."""

    positions: Tensor  # [rows, running]
    writes: Tensor  # [rows * running], where their keys and values are written
    pages: Pages  # the columns that they see


def place_columns(table: Tensor, counts: Tensor, running: int, grid: BlockGrid) -> PlacedColumns:
    """Place the columns of rows with this `KVPool.table`, of which `counts` [rows] are not padding.

    A row may need fewer columns than run. The first ones are then final or before the row, and are not
    written.
    """
    length, final, pages = table[:, 0, None], table[:, 1, None], table[:, 2:]
    step = torch.arange(running, device=table.device)
    own = length - running + step  # [rows, running], the number of each column within its row
    first = length - counts[:, None]
    origin = (first if grid.origin == "row" else 0) + grid.offset
    block_ends = (own - origin) // grid.length * grid.length + grid.length + origin
    # padding sees one column, because a query without keys would have an empty softmax
    ends = block_ends.minimum(length).maximum(first + 1)
    place = own.clamp(min=0)
    stored = pages.gather(1, place // PAGE) * PAGE + place % PAGE
    writes = torch.where(own >= final, stored, SPARE + step % PAGE).flatten()
    return PlacedColumns((own - first).clamp(min=0), writes, Pages(pages, first[:, 0], ends))


def write_pages(keys: Tensor, values: Tensor, writes: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Write the keys and values of the columns that ran, and return the whole pool."""
    for side, new in ((keys, k), (values, v)):
        side.index_copy_(0, writes, new.transpose(1, 2).flatten(0, 1))
    return keys, values
