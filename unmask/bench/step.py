"""Time one reverse step of a model: the forward and the sampler's share, with and without a cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, TypedDict

import torch
from torch import Tensor

from unmask.bench.device import torch_path
from unmask.bench.internals import all_bytes, mark_forwards
from unmask.bench.parts import Part, parts_of_a_step
from unmask.bench.timing import Spans, memory_peaks, milliseconds, seconds, synchronize, watch_memory
from unmask.decoding.cache import BlockCache, Recompute
from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.options import Options
from unmask.decoding.plan import plan
from unmask.decoding.result import Result, decode
from unmask.decoding.summary import summarize
from unmask.fast import kernels
from unmask.models import random_model
from unmask.models.trunk import Trunk
from unmask.samplers import make_sampler

SHAPES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("shapes.json").read_text(encoding="utf-8")
)
NAMES: dict[str, str] = SHAPES["names"]
CACHES: dict[str, Recompute | None] = {"none": None, "prefix": "suffix", "dual": "block"}
TOP_K = 8
# options of `unmask.compile` for each way to run a model; None leaves the model as loaded
WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "recorded": {"layers": False, "join": False},
    "compiled": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Lengths in tokens, batch sizes and numbers of runs."""

    prompt: int = 128
    length: int = 256
    block: int = 64
    batches: tuple[int, ...] = (1, 8, 32)
    budgets: tuple[int, ...] = (64, 16, 8)  # reverse steps per batch size, before leftovers are filled
    runs: int = 20
    warmups: int = 5

    def only(self, batches: Sequence[int]) -> Sizes:
        """Return the same sizes with only these batch sizes."""
        kept = {batch: budget for batch, budget in self.budget_of.items() if batch in batches}
        return replace(self, batches=tuple(kept), budgets=tuple(kept.values()))

    @property
    def budget_of(self) -> dict[int, int]:
        """The budget of each batch size."""
        return dict(zip(self.batches, self.budgets, strict=True))


SMALL = Sizes(prompt=16, length=32, block=16, batches=(1, 2), budgets=(8, 8), runs=2, warmups=1)


class StepTime(TypedDict):
    """The times of a step and of its forward, in milliseconds."""

    forward_ms: float
    step_ms: float | None  # None if the run had too few forwards


def full_size(family: str, device: torch.device, *, small: bool, dtype: torch.dtype | None = None) -> Trunk:
    """Return random weights in the published shape of a family, or in a miniature of it."""
    config = SHAPES["published"][family] | (SHAPES["tiny"][family] if small else {})
    usual = torch.float32 if device.type == "cpu" else torch.bfloat16
    return random_model(config, device=device, dtype=dtype or usual)


class StepTimer:
    """Times one model. The tokens of the first way to run it are compared with those of later ways."""

    def __init__(self, model: Trunk, sizes: Sizes, device: torch.device) -> None:
        self.model = model
        self.sizes = sizes
        self.device = device
        self.expected: dict[str, Tensor] = {}

    # ---- checks

    def compare(self, caches: Sequence[str]) -> dict[str, float]:
        """Return, for each cache, the share of tokens that equal those of the first way."""
        shares = {}
        for cache in caches:
            tokens = self.decode(1, cache, steps=self.sizes.budgets[0]).generated
            expected = self.expected.setdefault(cache, tokens)
            shares[cache] = float((tokens == expected).float().mean())
        return shares

    def summary(self) -> dict[str, Any]:
        """Compare the fused summary with the torch path, on a whole generation and on one block."""
        return {f"{width} rows": self._summary(width) for width in (self.sizes.length, self.sizes.block)}

    def _summary(self, width: int) -> dict[str, Any]:
        window = slice(self.sizes.prompt, self.sizes.prompt + width)
        logits = self.model(self.canvas(1).tokens, None, window, None)
        found: dict[str, Any] = {"fused": kernels.usable(logits, TOP_K)}
        ours = summarize(logits, TOP_K)
        found["ms"] = self.milliseconds(partial(summarize, logits, TOP_K))
        with torch_path():
            plain = summarize(logits, TOP_K)
            found["torch_path_ms"] = self.milliseconds(partial(summarize, logits, TOP_K))
        found["topk_and_logsumexp_ms"] = self.milliseconds(
            lambda: (logits.topk(TOP_K), logits.float().logsumexp(-1))
        )
        found["same_ids"] = bool((ours.top_ids == plain.top_ids).all())
        found["same_logits"] = bool((ours.top_logits == plain.top_logits).all())
        found["lse_error"] = float((ours.lse - plain.lse).abs().max())
        return found

    # ---- times

    def forward(self, batch: int) -> float:
        """Return the milliseconds of a forward without a cache, with the head on the whole generation."""
        return self.milliseconds(self._forward(batch))

    def _forward(self, batch: int) -> Callable[[], object]:
        window = slice(self.sizes.prompt, self.sizes.prompt + self.sizes.length)
        return partial(self.model, self.canvas(batch).tokens, None, window, None)

    def block_forward(self, batch: int) -> float:
        """Return the milliseconds of a forward of one block on cached keys and values."""
        tokens = self.canvas(batch).tokens
        window = slice(self.sizes.prompt, self.sizes.prompt + self.sizes.block)
        cache = BlockCache("block")
        cache.start_block(window)
        return self.milliseconds(partial(self.model, tokens, None, window, cache))

    def step(self, batch: int, cache: str) -> dict[str, Any]:
        """Time a reverse step of `less` as the mean over a whole run, including every wait of the host.

        Forwards that refresh a cache count. Without a cache, the result also holds the times of the run's own
        forwards. With a cache, it holds the usual time of a step inside a block.
        """
        budget = self.sizes.budget_of[batch]
        run = partial(self.decode, batch, cache, steps=budget)
        watch_memory(self.device)
        result = run()  # records and compiles shapes that no earlier forward had
        found: dict[str, Any] = {**memory_peaks(self.device, above=all_bytes(self.model))}
        times = 3 if batch == 1 else 1
        taken = min(seconds(run, self.device) for _ in range(times))
        found |= {"ms": taken * 1e3 / result.evaluations, "forwards": result.evaluations}
        if cache == "none":
            after = self._forward_after(run, batch, result.evaluations)
            return found | self._marked(run) | {"after_ms": after}
        return found | {"inside_ms": self._inside_a_block(run)}

    def sampler(self, name: str) -> StepTime:
        """Time a step of a sampler and its forward, on one row without a cache."""
        run = partial(self.decode, 1, "none", steps=self.sizes.budgets[0], sampler=name)
        run()
        return self._marked(run)

    def _forward_after(self, run: Callable[[], object], batch: int, count: int) -> float:
        """Return the mean milliseconds of `count` forwards right after a run, with the GPU just as warm."""
        forward, spans = self._forward(batch), Spans(self.device)
        run()
        for _ in range(count):
            spans.around(forward)()
        synchronize(self.device)
        return spans.between(spans.marks[0][0], spans.marks[-1][1]) / count

    def _marked(self, run: Callable[[], object]) -> StepTime:
        """Return the mean forward of a run and the mean time from one forward to the next.

        Timed separately, the same forward may take 3 % more or less, because a GPU's clock follows its load
        and heat.
        """
        marks = mark_forwards(self.model, run, self.device)
        steps = marks.step_ms()
        return StepTime(forward_ms=marks.forward_ms(), step_ms=mean(steps) if steps else None)

    def _inside_a_block(self, run: Callable[[], object]) -> float | None:
        """Return the median milliseconds from forward to forward. Few forwards refresh the cache."""
        steps = mark_forwards(self.model, run, self.device).step_ms()
        return median(steps) if steps else None

    def parts(self) -> list[Part]:
        """Return how the time of a step without a cache splits by kind of kernel."""
        steps = self.sizes.runs
        return parts_of_a_step(
            partial(self.decode, 1, "none", steps=steps, fill_leftovers=False), steps, self.device
        )

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Return the median milliseconds of `work`."""
        return milliseconds(work, runs=self.sizes.runs, warmups=self.sizes.warmups, device=self.device)

    # ---- runs

    def canvas(self, batch: int) -> Canvas:
        """Return random prompts of one length, followed by masks."""
        info, generator = self.model.info, torch.Generator().manual_seed(batch)
        ordinary = min(info.mask_id, info.pad_id, *info.eos_ids)
        prompts = torch.randint(ordinary, (batch, self.sizes.prompt), generator=generator).tolist()
        return blank(prompts, self.sizes.length, mask_id=info.mask_id, pad_id=info.pad_id, device=self.device)

    def decode(
        self, batch: int, cache: str, *, steps: int, sampler: str = "less", fill_leftovers: bool = True
    ) -> Result:
        """Decode once: the full sequence without a cache, block by block with one."""
        recompute, canvas = CACHES[cache], self.canvas(batch)
        blocks = plan(
            canvas.start,
            self.sizes.length,
            steps=steps,
            block_length=None if recompute is None else self.sizes.block,
        )
        held = None if recompute is None else BlockCache(recompute)
        options = Options(stop_at_eos=False, fill_leftovers=fill_leftovers)
        return decode(self.model, canvas, make_sampler(sampler), blocks, options, cache=held)
