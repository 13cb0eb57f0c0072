"""A reverse step at full size on one GPU: what the forward takes, what `less` adds, with and without a cache.

Weights are random, in the published shapes, made on the device. Every way to run the model is first compared
with the plain one: recorded forwards must give its tokens, the fused summary the numbers of the torch path.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask import kernels
from unmask.bench.parts import Part, parts_of_a_step
from unmask.bench.timing import machine, milliseconds, seconds
from unmask.cache import BlockCache, Recompute
from unmask.canvas import Canvas, blank
from unmask.loop import Options
from unmask.models import compile, random_model
from unmask.models.trunk import Trunk
from unmask.result import Result, decode
from unmask.samplers import make_sampler
from unmask.schedule import plan
from unmask.summary import summarize

SHAPES: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("shapes.json").read_text(encoding="utf-8")
)
NAMES: dict[str, str] = SHAPES["names"]
CACHES: dict[str, Recompute | None] = {"none": None, "prefix": "suffix", "dual": "block"}
TOP_K = 8
LSE_ERROR = 1e-4  # of two orders of summation in float32
FAILURES = (RuntimeError, ValueError)  # running out of GPU memory is a RuntimeError
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
    budgets: tuple[int, ...] = (64, 32, 16)  # reverse steps for each batch size; what is left then is filled
    runs: int = 20
    warmups: int = 5


SMALL = Sizes(prompt=16, length=32, block=16, batches=(1, 2), budgets=(8, 8), runs=2, warmups=1)


@dataclass(slots=True)
class Report:
    """All results; the file is written again after each."""

    content: dict[str, Any]
    path: Path | None
    deadline: float
    say: Callable[[str], None] = print
    problems: list[str] = field(default_factory=list)

    def attempt(self, place: dict[str, Any], name: str, work: Callable[[], object]) -> None:
        """Keep what `work` gives, or a sentence on why there is nothing."""
        if time.monotonic() > self.deadline:
            self.problem(f"{name}: left out, the time given was over")
            return
        try:
            place[name] = work()
        except FAILURES as error:
            self.problem(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
            gc.collect()
            torch.cuda.empty_cache()
        self.write()

    def problem(self, sentence: str) -> None:
        self.problems.append(sentence)
        self.say(f"problem: {sentence}")

    def write(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = self.content | {"problems": self.problems}
            self.path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def measure(
    report: Report, families: Sequence[str], ways: Sequence[str], device: torch.device, *, small: bool
) -> None:
    """Check and time every family in every way; the results are in the report."""
    sizes = SMALL if small else Sizes()
    report.content["machine"] = machine(device)
    for family in families:
        report.say(f"{NAMES[family]}: making the weights")
        config = SHAPES["published"][family] | (SHAPES["tiny"][family] if small else {})
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        model = random_model(config, device=device, dtype=dtype)
        bench = Bench(model, sizes, device)
        results = report.content["families"].setdefault(family, {"name": NAMES[family]})
        _measure_family(report, bench, ways, results)
        del model, bench
        gc.collect()


def _measure_family(report: Report, bench: Bench, ways: Sequence[str], results: dict[str, Any]) -> None:
    report.attempt(results, "summary", bench.summary)
    report.attempt(results, "weight_bytes", bench.weight_bytes)
    for way in ways:
        report.say(f"{results['name']}: {way}")
        if (options := WAYS[way]) is not None:
            compile(bench.model, bucket=bench.sizes.block, **options)
        found = results.setdefault(way, {})
        report.attempt(found, "same_tokens", bench.compare)
        for batch in bench.sizes.batches:
            report.attempt(found, f"forward_b{batch}", partial(bench.forward, batch))
            report.attempt(found, f"block_b{batch}", partial(bench.block_forward, batch))
            for cache in CACHES:
                report.attempt(found, f"step_b{batch}_{cache}", partial(bench.step, batch, cache))
        report.attempt(found, "parts", bench.parts)


class Bench:
    """One model, and what is asked of it. The first way to run it is what the others are compared with."""

    def __init__(self, model: Trunk, sizes: Sizes, device: torch.device) -> None:
        self.model = model
        self.sizes = sizes
        self.device = device
        self.expected: dict[str, Tensor] = {}

    # ---- checks

    def compare(self) -> dict[str, float]:
        """Share of tokens that a run has in common with the same run of the first way, for every cache."""
        shares = {}
        for cache in CACHES:
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
        return sum(weight.nbytes for weight in self.model.parameters()) - embed

    def forward(self, batch: int) -> float:
        """Milliseconds of a forward without a cache, with the head on the whole generation."""
        tokens = self.canvas(batch).tokens
        window = slice(self.sizes.prompt, self.sizes.prompt + self.sizes.length)
        return self._milliseconds(partial(self.model, tokens, None, window, None))

    def block_forward(self, batch: int) -> float:
        """Milliseconds of a forward of one block on cached keys and values."""
        tokens = self.canvas(batch).tokens
        window = slice(self.sizes.prompt, self.sizes.prompt + self.sizes.block)
        cache = BlockCache("block")
        cache.start_block(window)
        return self._milliseconds(partial(self.model, tokens, None, window, cache))

    def step(self, batch: int, cache: str) -> dict[str, Any]:
        """Milliseconds of a reverse step of `less`, from a whole run: every wait of the host and the forwards
        that refresh a cache included."""
        budget = dict(zip(self.sizes.batches, self.sizes.budgets, strict=True))[batch]
        run = partial(self.decode, batch, cache, steps=budget)
        result = run()  # records and compiles
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        taken = min(seconds(run, self.device) for _ in range(2 if batch == 1 else 1))
        return {
            "ms": taken * 1e3 / result.evaluations,
            "forwards": result.evaluations,
            "peak_bytes": torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0,
        }

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

    def decode(self, batch: int, cache: str, *, steps: int, fill_leftovers: bool = True) -> Result:
        """One run of `less`: the full sequence without a cache, blocks with one."""
        recompute, canvas = CACHES[cache], self.canvas(batch)
        blocks = plan(
            canvas.start,
            self.sizes.length,
            steps=steps,
            block_length=None if recompute is None else self.sizes.block,
        )
        held = None if recompute is None else BlockCache(recompute)
        options = Options(stop_at_eos=False, fill_leftovers=fill_leftovers)
        return decode(self.model, canvas, make_sampler("less"), blocks, options, cache=held)

    def _milliseconds(self, work: Callable[[], object]) -> float:
        return milliseconds(work, runs=self.sizes.runs, warmups=self.sizes.warmups, device=self.device)


@contextmanager
def torch_path() -> Iterator[None]:
    """Without kernels of our own."""
    before = os.environ.get(kernels.SWITCH)
    os.environ[kernels.SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[kernels.SWITCH]
        else:
            os.environ[kernels.SWITCH] = before


def wrong(content: Mapping[str, Any]) -> Iterator[str]:
    """What a way to run a model got wrong; compiled layers round differently, so tokens may differ there."""
    for family in content["families"].values():
        for cache, share in family.get("recorded", {}).get("same_tokens", {}).items():
            if share < 1:
                changed = f"recorded forwards changed {1 - share:.1%} of the tokens"
                yield f"{family['name']}, cache {cache}: {changed}"
        for rows, found in family.get("summary", {}).items():
            if not (found["same_ids"] and found["same_logits"] and found["lse_error"] < LSE_ERROR):
                yield f"{family['name']}, {rows}: the fused summary differs from the torch path"


# ---- the table


def table(content: Mapping[str, Any]) -> str:
    """The results as Markdown, one column per way to run each family."""
    columns = [(family, way) for family in content["families"].values() for way in WAYS if way in family]
    rows: dict[str, Callable[[Any, Any], str]] = {
        "tokens as eager: no cache / prefix / dual": lambda _, way: " / ".join(
            f"{share:.0%}" for share in way["same_tokens"].values()
        )
    }
    for batch in content["batches"]:
        rows |= _batch_rows(batch)
    lines = [
        f"`{content['command']}`, {_words(content['machine'])}; milliseconds",
        "",
        "| | " + " | ".join(f"{family['name']} {way}" for family, way in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for label, cell in rows.items():
        cells = [_cell(cell, family, family[way]) for family, way in columns]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_summary_lines(content)])


def _batch_rows(batch: int) -> dict[str, Callable[[Any, Any], str]]:
    def ms(name: str, _: Any, way: Any) -> str:
        value = way[name]
        return f"{value if isinstance(value, float) else value['ms']:.2f}"

    def added(_: Any, way: Any) -> str:
        forward, step = way[f"forward_b{batch}"], way[f"step_b{batch}_none"]["ms"]
        return f"{step - forward:.2f} ({(step - forward) / step:.1%})"

    return {
        f"B = {batch}: forward": partial(ms, f"forward_b{batch}"),
        f"B = {batch}: step of `less`, no cache": partial(ms, f"step_b{batch}_none"),
        f"B = {batch}: of it, all but the forward": added,
        f"B = {batch}: forward of a block, dual cache": partial(ms, f"block_b{batch}"),
        f"B = {batch}: step, prefix cache": partial(ms, f"step_b{batch}_prefix"),
        f"B = {batch}: step, dual cache": partial(ms, f"step_b{batch}_dual"),
    }


def _cell(cell: Callable[[Any, Any], str], family: Any, way: Any) -> str:
    try:
        return cell(family, way)
    except KeyError:  # a measurement that was not taken
        return "-"


def _summary_lines(content: Mapping[str, Any]) -> Iterator[str]:
    yield "| summary, B = 1 | ours | fused | torch path | topk + logsumexp | same ids | lse error |"
    yield "|---|---|---|---|---|---|---|"
    for family in content["families"].values():
        for rows, found in family.get("summary", {}).items():
            same = "yes" if found["same_ids"] and found["same_logits"] else "NO"
            yield (
                f"| {family['name']}, {rows} | {found['ms']:.3f} | {'yes' if found['fused'] else 'no'} "
                f"| {found['torch_path_ms']:.3f} | {found['topk_and_logsumexp_ms']:.3f} "
                f"| {same} | {found['lse_error']:.1e} |"
            )


def _words(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{key} {machine[key]}" for key in ("torch", "cuda", "triton") if machine[key])
    return f"{machine['device']}, {versions}, {machine['date']}"
