"""Estimate the device memory that running requests take.

The estimate is meant to be too high, because a request that waits costs less than a forward that fails. On an
H200, forwards of 384, 3,072 and 12,288 columns of a model of LLaDA-8B's shape took 0.4, 1.6 and 7.7 GB on top
of the weights.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.append_cache import GROWTH, AppendCache
from unmask.decoding.executor import MAX_LOGITS, head_of, needs_few_logits
from unmask.errors import FieldError
from unmask.fast.graphs import runner_of
from unmask.fast.kv_pool import RESERVED_PAGES, KVPool, count_pages
from unmask.fast.load import is_compiled
from unmask.serving.job import Job
from unmask.serving.limits import MIB, Limits
from unmask.serving.request import Request, is_pooled
from unmask.serving.shapes import MAX_COLUMNS
from unmask.text.generate import Run
from unmask.types import MaskedLM

CLOSE = 0.75  # a pool this close to the right size stays: a new one would drop its captured forwards
USABLE = 0.9  # share of the free memory; the rest is lost to fragmentation
PLAIN_COPIES = 2  # of a layer's tensors at the peak of a forward
COMPILED_COPIES = 4  # as above; the runs before a capture and the outputs of a graph need their own
LOGIT_BYTES = 6  # per logit while it is summarized: the model's bfloat16 and a float32 copy


@dataclass(slots=True)
class DeviceMemory:
    """The device memory that running requests share; if `total` is None, all of them fit."""

    model: MaskedLM
    device: torch.device
    limit: int | None  # bytes; None means measure
    total: int | None = None
    pool_share: float = 0.5  # largest share of the total for the pool of keys and values
    is_small: bool = False  # the pool is smaller than the limits ask for, to leave room beside it

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> None:
        """Set `total` to the limit or to the usable memory. Call it when nothing runs."""
        total = self.limit  # set `self.total` once, because `check` runs in other threads
        if self.limit is None and self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            total = int(USABLE * (free + unused + self._pool_bytes()))
        self.total = total

    def prepare(self, limits: Limits, job: Job) -> None:
        """Size the pool for all requests that the limits admit, within its share. Call it when nothing runs.

        A pool that had to grow later would drop its captured forwards. If the next job does not fit beside a
        pool of that size, make the pool smaller, and keep it as long as the next jobs fit.
        """
        self.measure()
        runner = runner_of(self.model)
        if runner is None or self.model.info.grid is None or self.total is None:
            return
        if self.is_small and self.fits([job]):
            return
        most = int(self.pool_share * self.total) // runner.kv_pool.page_bytes - RESERVED_PAGES
        shared = min(max(0, most), count_pages(limits.max_batch_tokens) + limits.max_rows)
        own = count_pages(job.request.length) if is_pooled(self.model, job.request.run) else 0
        try:
            runner.size_pool(shared, close=CLOSE)
            self.is_small = not self.fits([job])
            if self.is_small:
                free = self.total - self.needed([job]) + self._pooled_bytes([job])
                runner.size_pool(pages_within(free // runner.kv_pool.page_bytes, own, shared))
        except torch.OutOfMemoryError:
            self.pool_share /= 2  # others use the device too: try a smaller pool next time

    def reclaim(self) -> None:
        """Release captured graphs, and freed memory that torch keeps."""
        runner = runner_of(self.model)
        if runner is not None:
            runner.clear()
        gc.collect()  # the frames of an error may hold tensors
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def fits(self, jobs: Sequence[Job]) -> bool:
        """Return whether the jobs can run together, in the pool and beside it."""
        if self.total is None:
            return True
        pool, pooled = self._pool(), self._pooled_bytes(jobs)
        beside = self.needed(jobs) - pooled
        return beside + self._pool_bytes() <= self.total and pooled <= (0 if pool is None else pool.room)

    def check(self, job: Job) -> None:
        """Raise if a job does not fit even alone, with a pool of just its size."""
        total = self.total
        if total is None or (needed := self.needed([job])) <= total:
            return
        mib = total // MIB
        problem = f"needs about {needed // MIB} MiB of the device's memory, and this server has {mib}"
        remedy = "shorten the prompt or ask for fewer tokens"
        if job.request.run.cache is not None:
            remedy += ", or leave the cache out"
        raise FieldError("prompts", f"{job.request.length} tokens", problem, remedy)

    def needed(self, jobs: Sequence[Job]) -> int:
        """Return the most bytes that the jobs take together: their state, a forward and its logits."""
        shape: Any = getattr(self.model, "shape", None)
        requests = [job.request for job in jobs]
        kept = sum(request.state_bytes for request in requests)
        if shape is None:  # a user's own model
            return kept
        size = self._number_bytes()
        window = sum(request.widest * request.num_rows for request in requests)
        kept += window * shape.size * size + sum(map(self._cache_bytes, requests))
        forward = self._columns(requests) * self._column_bytes()
        return int(kept + forward + self._columns_of_logits(jobs) * shape.vocab_size * LOGIT_BYTES)

    def _columns_of_logits(self, jobs: Sequence[Job]) -> int:
        """Return of how many columns a step has logits at once."""
        head, requests = head_of(self.model), [job.request for job in jobs]
        columns = sum(request.widest * request.num_rows for request in requests)
        if head is None or any(job.candidates for job in jobs):  # candidates need all logits
            return columns
        few = [each.widest for each in requests if reads_some_rows_at_a_time(head, each.run)]
        return columns - sum(few) + min(sum(few), max([MAX_LOGITS // len(head), *few]))

    def _pool(self) -> KVPool | None:
        """Return the pool that a compiled model has for exact caches."""
        runner = runner_of(self.model)
        return None if runner is None else runner.kv_pool

    def _pool_bytes(self) -> int:
        pool = self._pool()
        return 0 if pool is None else pool.num_bytes

    def _pooled_bytes(self, jobs: Sequence[Job]) -> int:
        """Return the bytes that the jobs take in the pool."""
        requests = [job.request for job in jobs]
        return sum(self._cache_bytes(each) for each in requests if is_pooled(self.model, each.run))

    def _number_bytes(self) -> int:
        norm: Any = getattr(self.model, "norm", None)
        return 4 if norm is None else int(norm.weight.element_size())

    def _columns(self, requests: Sequence[Request]) -> int:
        """Return the columns of the largest forward."""
        lengths = [request.length * request.num_rows for request in requests]
        if not is_compiled(self.model):
            return sum(lengths)
        return max(max(lengths), min(sum(lengths), MAX_COLUMNS))

    def _column_bytes(self) -> int:
        """Return the bytes that a forward takes per column, at its peak inside a layer."""
        shape: Any = getattr(self.model, "shape", None)
        heads = (shape.heads + 2 * shape.key_heads) * shape.head_size
        mlp = shape.mlp_width(active=True) // shape.layers
        numbers = 4 * shape.size + 2 * heads + 3 * mlp
        copies = COMPILED_COPIES if is_compiled(self.model) else PLAIN_COPIES
        return int(numbers * self._number_bytes() * copies)

    def _cache_bytes(self, request: Request) -> int:
        """Return the bytes of a request's keys and values; outside its pool, a compiled model copies them."""
        cache = request.run.cache
        if cache is None:
            return 0
        pool = self._pool()
        if pool is not None and is_pooled(self.model, request.run):
            return count_pages(request.length) * pool.page_bytes
        shape: Any = getattr(self.model, "shape", None)
        column = 2 * shape.layers * shape.key_heads * shape.head_size * self._number_bytes()
        columns = -(-request.length // GROWTH) * GROWTH if isinstance(cache, AppendCache) else request.length
        copies = 2 if is_compiled(self.model) else 1
        return int(column * columns * request.num_rows * copies)


def reads_some_rows_at_a_time(head: Tensor, run: Run) -> bool:
    """Return whether a run's logits are not all made at once; see `Executor.read`."""
    return not run.guidance and needs_few_logits(head, run.sampler, run.options, run.bans)


def pages_within(most: int, own: int, shared: int) -> int:
    """Return the pages of a pool that takes at most `most` pages and has room for the `own` of a job.

    It is no larger than `shared` without need, and a power of two if possible: each size is compiled and
    captured anew.
    """
    most -= RESERVED_PAGES
    least, usual = 1 << max(0, own - 1).bit_length(), 1 << max(1, min(shared, most)).bit_length() - 1
    return max(own, min(most, max(least, usual)))
