"""A reverse step at full size on one GPU: what the forward takes, what `less` adds, with and without a cache.

Weights are random, in the published shapes, made on the device. Every way to run the model is compared with
the first: recorded forwards must give its tokens, the fused summary the numbers of the torch path.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, TypedDict

import torch
from torch import Tensor

from unmask.bench.parts import Part, parts_of_a_step
from unmask.bench.reference import Published, Reference
from unmask.bench.report import Report
from unmask.bench.switches import torch_path
from unmask.bench.timing import (
    Spans,
    machine,
    memory_peaks,
    milliseconds,
    seconds,
    synchronize,
    watch_memory,
)
from unmask.decoding.cache import BlockCache, Recompute
from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.options import Options
from unmask.decoding.plan import plan
from unmask.decoding.result import Result, decode
from unmask.decoding.summary import summarize
from unmask.fast import kernels
from unmask.fast.compile import compile
from unmask.models import random_model
from unmask.models.trunk import Trunk
from unmask.samplers import make_sampler

SHAPES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("shapes.json").read_text(encoding="utf-8")
)
NAMES: dict[str, str] = SHAPES["names"]
CACHES: dict[str, Recompute | None] = {"none": None, "prefix": "suffix", "dual": "block"}
TOP_K = 8
COMPARED = ("base", "klass", "less")  # samplers whose step is timed beside the references
# how a model is run: as loaded, its forwards recorded, and all that `unmask.compile` does
WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "recorded": {"layers": False, "join": False},
    "compiled": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is run; lengths in tokens."""

    prompt: int = 128
    length: int = 256
    block: int = 64
    batches: tuple[int, ...] = (1, 8, 32)
    budgets: tuple[int, ...] = (64, 16, 8)  # reverse steps for each batch size; what is left then is filled
    runs: int = 20
    warmups: int = 5

    def only(self, batches: Sequence[int]) -> Sizes:
        """With these batch sizes alone."""
        kept = {batch: budget for batch, budget in self.budget_of.items() if batch in batches}
        return replace(self, batches=tuple(kept), budgets=tuple(kept.values()))

    @property
    def budget_of(self) -> dict[int, int]:
        """The budget of each batch size."""
        return dict(zip(self.batches, self.budgets, strict=True))


SMALL = Sizes(prompt=16, length=32, block=16, batches=(1, 2), budgets=(8, 8), runs=2, warmups=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be measured."""

    families: Sequence[str]
    ways: Sequence[str]
    batches: Sequence[int]
    caches: Sequence[str]  # beside none, which is timed always
    samplers: Sequence[str]  # beside the references
    references: Sequence[Reference]


class Added(TypedDict):
    """What a sampler adds to a forward, in milliseconds."""

    forward_ms: float
    step_ms: float | None  # None: the run was too short to tell


@torch.no_grad()
def measure(report: Report, asked: Asked, device: torch.device, *, small: bool) -> None:
    """Check and time every family in every way; the results are in the report."""
    sizes = (SMALL if small else Sizes()).only(asked.batches)
    report.content["machine"] = machine(device)
    for family in asked.families:
        report.say(f"{NAMES[family]}: making the weights")
        bench = Bench(full_size(family, device, small=small), sizes, device)
        results = report.content["families"].setdefault(family, {"name": NAMES[family]})
        _measure_family(report, bench, asked, results)
        del bench
        gc.collect()


def full_size(family: str, device: torch.device, *, small: bool) -> Trunk:
    """Random weights in the published shape of a family; small: in miniature."""
    config = SHAPES["published"][family] | (SHAPES["tiny"][family] if small else {})
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return random_model(config, device=device, dtype=dtype)


def _measure_family(report: Report, bench: Bench, asked: Asked, results: dict[str, Any]) -> None:
    report.attempt(results, "summary", bench.summary)
    report.attempt(results, "weight_bytes", bench.weight_bytes)
    for reference in asked.references:  # before anything is compiled
        timed = results.setdefault("references", {})
        report.attempt(timed, reference.name, partial(bench.reference, reference))
    for way in asked.ways:
        report.say(f"{results['name']}: {way}")
        if (options := WAYS[way]) is not None:
            compile(bench.model, bucket=bench.sizes.block, **options)
        _measure_way(report, bench, asked, results.setdefault(way, {}))


def _measure_way(report: Report, bench: Bench, asked: Asked, found: dict[str, Any]) -> None:
    """What matters most comes first; caches last, as keys and values that are kept would count as memory."""
    for batch in bench.sizes.batches:
        report.attempt(found, f"forward_b{batch}", partial(bench.forward, batch))
        report.attempt(found, f"step_b{batch}_none", partial(bench.step, batch, "none"))
        if batch == 1:
            for sampler in asked.samplers:
                timed = found.setdefault("samplers", {})
                report.attempt(timed, sampler, partial(bench.added, sampler))
            report.attempt(found, "parts", bench.parts)
    for cache in [name for name in ("dual", "prefix") if name in asked.caches]:
        for batch in bench.sizes.batches:
            if cache == "dual":
                report.attempt(found, f"block_b{batch}", partial(bench.block_forward, batch))
            report.attempt(found, f"step_b{batch}_{cache}", partial(bench.step, batch, cache))
    if len(asked.ways) > 1:
        report.attempt(found, "same_tokens", partial(bench.compare, asked.caches))


class Bench:
    """One model, and what is asked of it. The first way to run it is what the others are compared with."""

    def __init__(self, model: Trunk, sizes: Sizes, device: torch.device) -> None:
        self.model = model
        self.sizes = sizes
        self.device = device
        self.expected: dict[str, Tensor] = {}

    # ---- checks

    def compare(self, caches: Sequence[str]) -> dict[str, float]:
        """Share of tokens that a run has in common with the same run of the first way, for every cache."""
        shares = {}
        for cache in caches:
            tokens = self.decode(1, cache, steps=self.sizes.budgets[0]).generated
            expected = self.expected.setdefault(cache, tokens)
            shares[cache] = float((tokens == expected).float().mean())
        return shares

    def summary(self) -> dict[str, Any]:
        """The fused summary beside the torch path, on the logits of a whole generation and of a block."""
        return {f"{width} rows": self._summary(width) for width in (self.sizes.length, self.sizes.block)}

    def _summary(self, width: int) -> dict[str, Any]:
        window = slice(self.sizes.prompt, self.sizes.prompt + width)
        logits = self.model(self.canvas(1).tokens, None, window, None)
        found: dict[str, Any] = {"fused": kernels.usable(logits, TOP_K)}
        ours = summarize(logits, TOP_K)
        found["ms"] = self._milliseconds(partial(summarize, logits, TOP_K))
        with torch_path():
            plain = summarize(logits, TOP_K)
            found["torch_path_ms"] = self._milliseconds(partial(summarize, logits, TOP_K))
        found["topk_and_logsumexp_ms"] = self._milliseconds(
            lambda: (logits.topk(TOP_K), logits.float().logsumexp(-1))
        )
        found["same_ids"] = bool((ours.top_ids == plain.top_ids).all())
        found["same_logits"] = bool((ours.top_logits == plain.top_logits).all())
        found["lse_error"] = float((ours.lse - plain.lse).abs().max())
        return found

    # ---- times

    def weight_bytes(self) -> int:
        """Bytes that a forward must read at least: all weights but the embedding."""
        embed = 0 if self.model.head is None else self.model.embed.weight.nbytes
        return self.all_bytes() - embed

    def all_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(weight.nbytes for weight in self.model.parameters())

    def forward(self, batch: int) -> float:
        """Milliseconds of a forward without a cache, with the head on the whole generation."""
        return self._milliseconds(self._forward(batch))

    def _forward(self, batch: int) -> Callable[[], object]:
        window = slice(self.sizes.prompt, self.sizes.prompt + self.sizes.length)
        return partial(self.model, self.canvas(batch).tokens, None, window, None)

    def block_forward(self, batch: int) -> float:
        """Milliseconds of a forward of one block on cached keys and values."""
        tokens = self.canvas(batch).tokens
        window = slice(self.sizes.prompt, self.sizes.prompt + self.sizes.block)
        cache = BlockCache("block")
        cache.start_block(window)
        return self._milliseconds(partial(self.model, tokens, None, window, cache))

    def step(self, batch: int, cache: str) -> dict[str, Any]:
        """Milliseconds of a reverse step of `less`: the mean of a whole run, every wait of the host and the
        forwards that refresh a cache included; beside it those of its forward, or of steps inside a block."""
        budget = self.sizes.budget_of[batch]
        run = partial(self.decode, batch, cache)
        watch_memory(self.device)
        result = run(steps=budget)  # records and compiles what the forward before it did not
        found: dict[str, Any] = {**memory_peaks(self.device, above=self.all_bytes())}
        times = 3 if batch == 1 else 1
        taken = min(seconds(partial(run, steps=budget), self.device) for _ in range(times))
        found |= {"ms": taken * 1e3 / result.evaluations, "forwards": result.evaluations}
        if cache == "none":
            after = self._after(partial(run, steps=budget), batch, result.evaluations)
            return found | self._within_a_run(partial(run, steps=budget)) | {"after_ms": after}
        return found | {"inside_ms": self._inside(partial(run, steps=budget))}

    def added(self, sampler: str) -> Added:
        """A step of a sampler beside its forward, on one row without a cache."""
        run = partial(self.decode, 1, "none", steps=self.sizes.budgets[0], sampler=sampler)
        run()
        return self._within_a_run(run)

    def reference(self, reference: Reference) -> Added:
        """A step of other code's sampler beside its forward, which has the head on every column."""
        model, canvas = Published(self.model), self.canvas(1)
        prompt = canvas.tokens[:, : canvas.start]

        def run(steps: int) -> int:
            before = model.forwards
            reference.call(model, prompt, steps=steps, length=self.sizes.length, block=self.sizes.block)
            if model.forwards == before:
                raise ValueError(f"{reference.name} did not run the model that it was given")
            return model.forwards - before

        budget = self.sizes.budgets[0]
        step = self._one_more(run, budget // 2, budget)
        return Added(forward_ms=self._milliseconds(partial(model, canvas.tokens)), step_ms=step)

    def _after(self, run: Callable[[], object], batch: int, count: int) -> float:
        """Milliseconds of a forward by itself, as many as a run had and straight after one, so as warm."""
        forward, spans = self._forward(batch), Spans(self.device)
        run()
        for _ in range(count):
            spans.around(forward)()
        synchronize(self.device)
        return spans.between(spans.marks[0][0], spans.marks[-1][1]) / count

    def _within_a_run(self, run: Callable[[], object]) -> Added:
        """The forwards of a run, and its steps from the start of one forward to that of the next.

        Timed apart, the same forward takes 3 % more or less: the clock of a GPU follows its load and heat.
        """
        parts = self._marked(run)
        forwards = sum(spans.between(*pair) for spans in parts for pair in spans.marks)
        steps = parts[0].steps()
        return Added(forward_ms=forwards / len(parts[0].marks), step_ms=mean(steps) if steps else None)

    def _inside(self, run: Callable[[], object]) -> float | None:
        """Milliseconds of a step inside a block: the usual one, as few forwards refresh the cache."""
        steps = self._marked(run)[0].steps()
        return median(steps) if steps else None

    def _marked(self, run: Callable[[], object]) -> tuple[Spans, Spans, Spans]:
        """When the forwards of a run began and ended: their first layers, the rest of them, the head."""
        opening, rest, head = (Spans(self.device) for _ in range(3))
        ready, logits = self.model.ready, self.model.logits

        def watched(*given: Any) -> Callable[[], Tensor]:
            maybe = Spans(self.device)  # an opening that is not gone on from is no part of a forward
            go_on = maybe.around(ready)(*given)

            def gone_on() -> Tensor:
                opening.marks.extend(maybe.marks)
                return rest.around(go_on)()

            return gone_on

        self.model.ready = watched  # type: ignore[method-assign, assignment]
        self.model.logits = head.around(logits)  # type: ignore[method-assign]
        try:
            run()
            synchronize(self.device)
        finally:
            del self.model.ready, self.model.logits
        return opening, rest, head

    def _one_more(self, run: Callable[[int], int], few: int, many: int) -> float | None:
        """Milliseconds of every forward that a run of many steps makes more than one of few: what both do
        once cancels out. `run` takes the steps and says how many forwards it made."""
        more = run(many) - run(few)
        if more <= 0:
            return None
        shorter, longer = (seconds(partial(run, steps), self.device) for steps in (few, many))
        return (longer - shorter) * 1e3 / more

    def parts(self) -> list[Part]:
        """Where the time of a step without a cache goes."""
        steps = self.sizes.runs
        return parts_of_a_step(
            partial(self.decode, 1, "none", steps=steps, fill_leftovers=False), steps, self.device
        )

    # ---- runs

    def canvas(self, batch: int) -> Canvas:
        """Random prompts of one length, followed by masks."""
        info, generator = self.model.info, torch.Generator().manual_seed(batch)
        ordinary = min(info.mask_id, info.pad_id, *info.eos_ids)
        prompts = torch.randint(ordinary, (batch, self.sizes.prompt), generator=generator).tolist()
        return blank(prompts, self.sizes.length, mask_id=info.mask_id, pad_id=info.pad_id, device=self.device)

    def decode(
        self, batch: int, cache: str, *, steps: int, sampler: str = "less", fill_leftovers: bool = True
    ) -> Result:
        """One run: the full sequence without a cache, blocks with one."""
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

    def _milliseconds(self, work: Callable[[], object]) -> float:
        return milliseconds(work, runs=self.sizes.runs, warmups=self.sizes.warmups, device=self.device)
