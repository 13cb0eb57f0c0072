"""`unmask bench same`: check that every fast path writes the tokens of the plain path.

In float32 all tokens must be equal. In narrower dtypes the share of equal tokens is reported. The plain path
runs the layers as loaded, summarizes with torch alone and has no cache. Caches are refreshed at every step,
so that they compute the same numbers in another way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.bench.device import exact_float32, torch_path
from unmask.bench.report import Report, check_names, command_line
from unmask.bench.timing import machine, machine_line
from unmask.decoding.cache import BlockCache, Recompute
from unmask.decoding.canvas import Canvas, blank
from unmask.decoding.checks import extra_needs
from unmask.decoding.plan import plan
from unmask.decoding.result import decode
from unmask.fast import kernels
from unmask.fast.compile import compile
from unmask.models import load
from unmask.models.checkpoint.hub import find_folder
from unmask.models.checkpoint.load import pick_device
from unmask.models.quantized.convert import FORMATS
from unmask.models.trunk import Trunk
from unmask.samplers import SAMPLERS as REGISTERED
from unmask.samplers import make_sampler
from unmask.text.config import GenerationConfig
from unmask.training.tasks import TEST_TASKS, test_items

MODELS = ("mini-llada", "mini-dream")
SAMPLERS = ("base", "threshold", "klass", "less")
DTYPES = ("float32", "bfloat16")
EXACT = "float32"
PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to run a model. All ways but the plain one use the fused kernels if they run on the device."""

    kernels: bool = True
    compiled: Mapping[str, Any] | None = None  # options of `compile`, or None to leave the model as loaded
    cache: Recompute | None = None


WAYS = {
    PLAIN: Way(kernels=False),
    "kernels": Way(),
    "recorded": Way(compiled={"layers": False}),
    "compiled": Way(compiled={}),
    "prefix": Way(cache="suffix"),
    "dual": Way(cache="block"),
    "recorded-dual": Way(compiled={"layers": False}, cache="block"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The batch to decode."""

    rows: int = 8
    length: int = 128


SMALL = BatchSize(rows=3, length=16)


def run_same(
    *,
    models: Sequence[str] = MODELS,
    ways: Sequence[str] = tuple(WAYS),
    dtypes: Sequence[str] = DTYPES,
    samplers: Sequence[str] = SAMPLERS,
    device: str | None = None,
    small: bool = False,
    minutes: float = 20.0,
    out: Path | None = None,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compare, print the table, and write `out`/same.json. Return the results."""
    check_names("ways", ways, WAYS)
    check_names("dtypes", dtypes, [*DTYPES, *FORMATS])
    check_names("samplers", samplers, REGISTERED)
    if not models:
        raise ValueError("--model must name at least one model, got none")
    for name in models:
        find_folder(name)
    place = pick_device(device or ("cpu" if small else "auto"))
    probe = torch.zeros(1, 1, 64, device=place)
    names = ",".join(Path(name).name for name in models)
    options = [("model", names), ("ways", ",".join(ways)), ("dtypes", ",".join(dtypes))]
    options += [("samplers", ",".join(samplers)), ("device", place.type)]
    content: dict[str, Any] = {
        "command": command_line("unmask bench same", [*options, ("minutes", f"{minutes:g}")], small=small),
        "machine": machine(place),
        "kernels": kernels.usable(probe, 8),
        "models": {},
    }
    path = None if out is None else out / "same.json"
    report = Report(content, path, time.monotonic() + minutes * 60, log)
    every = [PLAIN, *(way for way in ways if way != PLAIN)]
    done, parts = 0, len(models) * len(dtypes) * len(every)
    for name in models:
        check = Check(name, place, SMALL if small else BatchSize(), samplers, first=dtypes[0])
        found = content["models"].setdefault(Path(name).name, {})
        for dtype in dtypes:
            shares = found.setdefault(dtype, {})
            for way in every:
                done += 1
                log(f"{done} of {parts}: {Path(name).name}, {dtype}, {way}")
                report.attempt(shares, way, partial(check.shares, way, dtype))
    for sentence in wrong(content):
        report.problem(sentence)
    log(f"\n{table(content)}")
    report.write()
    return report.result()


class Check:
    """One checkpoint, and the tokens of its plain path in each dtype."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        size: BatchSize,
        samplers: Sequence[str] = SAMPLERS,
        *,
        first: str = EXACT,
    ) -> None:
        self.name = name
        self.device = device
        self.size = size
        self.samplers = samplers
        self.first = first  # the dtype whose plain path the others' are compared with
        self.expected: dict[str, dict[str, Tensor]] = {}

    def shares(self, way: str, dtype: str) -> dict[str, float]:
        """Return, for each sampler, the share of tokens that equal the plain path's.

        The plain path itself is compared with that of the first dtype.
        """
        written = self.written(WAYS[way], dtype)
        if way == PLAIN:
            self.expected[dtype] = written
        expected = self.expected[self.first if way == PLAIN else dtype]
        return {
            sampler: float((tokens == expected[sampler]).double().mean())
            for sampler, tokens in written.items()
        }

    def written(self, way: Way, dtype: str) -> dict[str, Tensor]:
        """Return the generated tokens of every sampler, [B, L] each."""
        model = load(self.name, device=self.device, dtype=dtype)
        if way.compiled is not None:
            compile(model, **way.compiled)
        with nullcontext() if way.kernels else torch_path(), exact_float32():
            return {name: self.decode(model, name, way.cache) for name in self.runnable(way)}

    def runnable(self, way: Way) -> list[str]:
        """Return the samplers that can run this way. Some need the whole canvas and cannot use a cache."""
        return [
            name for name in self.samplers if way.cache is None or extra_needs(make_sampler(name)) is None
        ]

    def decode(self, model: Trunk, sampler: str, recompute: Recompute | None) -> Tensor:
        """Decode one batch in the blocks of the model's family."""
        length, canvas = self.size.length, self.canvas(model)
        block = GenerationConfig().block_size(model.info, length)
        blocks = plan(canvas.start, length, steps=length, block_length=block)
        cache = None if recompute is None else BlockCache(recompute, refresh_every=1)
        return decode(model, canvas, make_sampler(sampler), blocks, cache=cache).generated

    def canvas(self, model: Trunk) -> Canvas:
        """Return a canvas of prompts of different lengths, padded on the left."""
        info, rows = model.info, self.size.rows
        prompts = list(questions(model, rows)) if model.tokenizer else list(noise(info.mask_id, rows))
        return blank(prompts, self.size.length, mask_id=info.mask_id, pad_id=info.pad_id, device=self.device)


def questions(model: Trunk, rows: int) -> Iterator[list[int]]:
    """Yield test questions of the mini tasks, one task after another."""
    assert model.tokenizer is not None
    for row in range(rows):
        turn, task = divmod(row, len(TEST_TASKS))
        item = test_items(TEST_TASKS[task])[turn]
        yield model.tokenizer.chat([{"role": "user", "content": item.prompt}])


def noise(most: int, rows: int) -> Iterator[list[int]]:
    """Yield random ids, for a model without a tokenizer."""
    generator = torch.Generator().manual_seed(0)
    for row in range(rows):
        yield torch.randint(most, (3 + 2 * row,), generator=generator).tolist()


def wrong(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for every fast path that changed tokens in float32."""
    for model, dtypes in content["models"].items():
        for way, shares in dtypes.get(EXACT, {}).items():
            for sampler, share in shares.items():
                if share < 1:
                    yield f"{model}, {sampler}, {way}: {1 - share:.2%} of the tokens changed in float32"


def table(content: Mapping[str, Any]) -> str:
    """Return the shares as Markdown, one row per way."""
    meaning = "share of tokens as on the plain path; the plain path beside that of the first dtype"
    every = (
        shares
        for dtypes in content["models"].values()
        for ways in dtypes.values()
        for shares in ways.values()
    )
    samplers = list(dict.fromkeys(name for shares in every for name in shares))
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}; {meaning}",
        "",
        "| | " + " | ".join(f"`{name}`" for name in samplers) + " |",
        "|---|" + "---|" * len(samplers),
    ]
    for model, dtypes in content["models"].items():
        for dtype, ways in dtypes.items():
            for way, shares in ways.items():
                if (dtype, way) != (next(iter(dtypes)), PLAIN):  # compared with itself
                    cells = " | ".join(f"{shares[name]:.2%}" if name in shares else "-" for name in samplers)
                    lines.append(f"| {model}, {dtype}, {way} | {cells} |")
    if not content["kernels"]:
        lines += ["", "The fused kernels do not run on this device; the torch path ran instead."]
    return "\n".join(lines)
