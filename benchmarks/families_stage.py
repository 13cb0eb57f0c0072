"""Measure one family for `families.py`. argv[1] is a Job as JSON; the results go to a JSON file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import full_size_stage as full_size
from unmask import AppendCache, GenerationConfig, Options, compile, denoise, generate, make_sampler, plan
from unmask.bench.internals import mark_forwards, read_bytes
from unmask.bench.parts import parts_of_a_step
from unmask.bench.step import Sizes, StepTimer
from unmask.bench.timing import timed
from unmask.decoding.canvas import Canvas
from unmask.models import random_model
from unmask.models.experts import Experts, Router
from unmask.models.trunk import Trunk
from unmask.types import Step

BANDWIDTH = 4.3e12  # bytes per second that an H200 reads
ARITHMETIC = 790e12  # bfloat16 operations per second that it reaches
SAMPLER = "less"
WAYS = ("none", "append")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of the stage. Lengths are in tokens."""

    stage: str
    folder: str
    result: str
    device: str
    config: dict[str, object]
    shard_bytes: int
    prompt: int
    length: int
    batches: tuple[int, ...]
    new_tokens: int  # decoded with the family's preset and with `less`
    steps: dict[str, int]  # batch size -> steps to time
    warmups: int
    runs: int
    preset: str
    settings: dict[str, Any]  # settings of the preset
    seconds: float  # time limit, after which no measurement begins
    in_memory: bool  # no checkpoint was written

    @property
    def stages(self) -> full_size.Job:
        """The same job for the functions of `full_size_stage`."""
        names = ("stage", "folder", "result", "device", "config", "shard_bytes", "prompt", "length")
        shared: dict[str, Any] = {
            name: getattr(self, name) for name in (*names, "batches", "warmups", "runs")
        }
        return full_size.Job(**shared, steps=1, base_steps=1, canvases=1)


def main(argument: str) -> None:
    job = Job(**json.loads(argument))
    record = Record(job)
    record.keep("machine", full_size.machine(job.stages))
    with torch.no_grad():
        measure(job, record)


class Record(full_size.Record):
    """Results by group and name. A measurement that would begin after the time limit is left out."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.stages)
        self.deadline = time.monotonic() + job.seconds

    def within(self, group: str, name: str, work: Callable[[], object]) -> None:
        """Keep the result of `work` under a name in a group."""
        if time.monotonic() > self.deadline:
            problem = f"{group} {name}: left out, the time given was over"
            self.keep("problems", [*self.content["problems"], problem])
            return
        self.attempt(group, lambda: self.content.get(group, {}) | {name: self._result(name, work)})

    def _result(self, name: str, work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception as error:  # a compiler can raise anything, and earlier results must survive
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error


def measure(job: Job, record: Record) -> None:
    if job.in_memory:
        model = random_model(job.config, device=job.device)
    else:
        model, loaded = full_size.measured_load(job.stages, "auto")
        record.keep("load", loaded)
    record.keep("parameters", sum(weight.numel() for weight in model.parameters()))
    timer = FamilyTimer(model, job)
    ways = WAYS if model.info.grid is not None else WAYS[:1]
    for way in ways:
        record.within("floors", way, partial(timer.floors, way))
    if not job.in_memory:
        measure_uncompiled(timer, record, ways)
    measure_compiled(timer, record, ways)


def measure_uncompiled(timer: FamilyTimer, record: Record, ways: Sequence[str]) -> None:
    """Decode with the preset of the family and with `less`, and time a forward and a step."""
    job = timer.job
    for name, settings in {job.preset: job.settings, SAMPLER: {}}.items():
        record.within("decode", name, partial(decoded, timer.model, job, name, settings))
    for way in ways:
        record.within("eager", f"forward_{way}_b1", partial(timer.forward_on, 1, way))
        record.within("eager", f"step_{way}_b1", partial(timer.remember, way))


def measure_compiled(timer: FamilyTimer, record: Record, ways: Sequence[str]) -> None:
    """Compile the model, time forwards and steps, and compare the tokens with those of the plain model."""
    job, model = timer.job, timer.model
    cuda = model.embed.weight.is_cuda
    compile(model, layers=cuda, bucket=job.prompt + job.length)
    if not cuda and model.executor is not None:
        model.executor = partial(model.executor, compiled=False)
    for batch in job.batches:
        for way in reversed(ways):
            record.within("compiled", f"step_{way}_b{batch}", partial(timer.steps_on, batch, way))
            if batch == 1:
                record.within("compiled", f"forward_{way}_b1", partial(timer.forward_on, 1, way))
                if way in timer.expected:
                    record.within("same_tokens", way, partial(timer.same_tokens, way))
                record.within("parts", way, partial(timer.parts_on, way))
        if job.config["model_type"] == "sdar":
            record.within("transformers", f"b{batch}", partial(qwen3_forward, timer, batch))


def decoded(model: Trunk, job: Job, name: str, settings: dict[str, Any]) -> dict[str, object]:
    """Decode one prompt of random tokens with `generate`."""
    prompt = full_size.random_tokens(model, job.stages, rows=1, seed=0)[0, : job.prompt].tolist()
    config = GenerationConfig(max_new_tokens=job.new_tokens, seed=0, **settings)
    seconds, answer = timed(lambda: generate(model, prompt, name, config), model.embed.weight.device)
    facts = {"sampler": name, "settings": settings, "seconds": seconds, "tokens": len(answer.token_ids)}
    return facts | {"steps": answer.steps, "forwards": answer.forwards}


class FamilyTimer(StepTimer):
    """Times a family on the whole canvas ("none") and inside a block ("append")."""

    def __init__(self, model: Trunk, job: Job) -> None:
        sizes = Sizes(prompt=job.prompt, length=job.length, runs=job.runs, warmups=job.warmups)
        super().__init__(model, sizes, model.embed.weight.device)
        self.job = job
        grid = model.info.grid
        self.block = job.length if grid is None else grid.length

    def window(self, way: str) -> slice:
        """Return the columns that the head runs on."""
        width = self.sizes.length if way == "none" else self.block
        return slice(self.sizes.prompt, self.sizes.prompt + width)

    def work(self, batch: int, way: str) -> Callable[[], object]:
        """Return a forward of the whole canvas, or one inside the first block with a filled cache."""
        tokens, window, cache = self.canvas(batch).tokens, self.window(way), self.new_cache(way)
        if cache is not None:
            cache.start_block(window)
            with self.model.uncompiled():  # fills the cache, not timed
                self.model(tokens, None, window, cache)
        return partial(self.model, tokens, None, window, cache)

    def new_cache(self, way: str) -> CountedCache | None:
        return CountedCache(self.block) if way == "append" else None

    def forward_on(self, batch: int, way: str) -> float:
        """Return the milliseconds of a forward with its head."""
        return self.milliseconds(self.work(batch, way))

    def steps_on(self, batch: int, way: str) -> dict[str, float | int | None]:
        """Return the median milliseconds from forward to forward, with a cache only of those in a block."""
        count = self.job.steps[str(batch)]
        self.run(batch, way, count)  # compiles and captures
        cache = self.new_cache(way)
        marks = mark_forwards(self.model, lambda: self.run(batch, way, count, cache), self.device)
        steps = marks.step_ms()
        if cache is not None:
            steps = [
                ms for ms, columns in zip(steps, cache.columns_run, strict=False) if columns == self.block
            ]
        return {"ms": median(steps) if steps else None, "steps": len(steps), "forward_ms": marks.forward_ms()}

    def parts_on(self, way: str) -> object:
        """Return how the time of a step splits by kind of kernel."""
        count = self.job.steps["1"]
        return parts_of_a_step(partial(self.run, 1, way, count), count, self.device)

    def remember(self, way: str) -> float:
        """Keep the tokens after the first steps of a run, and return the milliseconds of a step."""
        count = self.job.steps["1"]
        taken, last = timed(partial(self.run, 1, way, count), self.device)
        self.expected[way] = last.tokens
        return taken * 1e3 / count

    def same_tokens(self, way: str) -> float:
        """Return the share of tokens that equal those of the plain model, after the first steps of a run."""
        last = self.run(1, way, self.job.steps["1"])
        return float((last.tokens == self.expected[way])[:, self.sizes.prompt :].float().mean())

    def run(self, batch: int, way: str, count: int, cache: AppendCache | None = None) -> Step:
        """Take the first steps of a run, and return the last of them."""
        steps = self.denoise(self.canvas(batch), cache or self.new_cache(way))
        *_, last = islice(steps, count)
        return last

    def denoise(self, canvas: Canvas, cache: AppendCache | None) -> Iterator[Step]:
        """Decode with one step per token, in blocks if the model attends by blocks."""
        length, grid = self.sizes.length, self.model.info.grid
        block = None if grid is None else grid.length
        blocks = plan(canvas.start, length, steps=length, block_length=block)
        sampler = make_sampler(SAMPLER)
        return denoise(self.model, canvas, sampler, blocks, Options(stop_at_eos=False), cache=cache)

    def floors(self, way: str) -> dict[str, object]:
        """Return the floors of every batch size."""
        return {str(batch): self.floor(batch, way) for batch in self.job.batches}

    def floor(self, batch: int, way: str) -> dict[str, float | int]:
        """Return the least milliseconds for reading the weights and for multiplying by them."""
        model, shape = self.model, self.model.shape
        columns = batch * (self.sizes.prompt + self.sizes.length if way == "none" else self.block)
        window = self.window(way)
        attention = 2 * (shape.heads + shape.key_heads) * shape.head_size * shape.layers
        layers = columns * (attention + 3 * shape.mlp_width(active=True))
        head = batch * (window.stop - window.start) * shape.vocab_size
        touched, experts = self.touched(batch, way)
        sums, read = 2 * shape.size * (layers + head), read_bytes(model) - experts + touched
        return {
            "columns": columns // batch,
            "bytes": read,
            "sums": sums,
            "bytes_ms": read / BANDWIDTH * 1e3,
            "sums_ms": sums / ARITHMETIC * 1e3,
        }

    def touched(self, batch: int, way: str) -> tuple[int, int]:
        """Return the bytes of the experts that a forward touches, and of all experts."""
        stacks = [module for module in self.model.modules() if isinstance(module, Experts)]
        if not stacks:
            return 0, 0
        work = self.work(batch, way)  # made before counting, because it may fill a cache first
        with counting(self.model) as counts:
            work()
        of_one = (stacks[0].gate_up[0].nbytes, stacks[0].down[0].nbytes)
        return sum(counts) * sum(of_one), sum(each.gate_up.nbytes + each.down.nbytes for each in stacks)


class CountedCache(AppendCache):
    """An AppendCache that records the number of columns of each forward."""

    def __init__(self, block_length: int) -> None:
        super().__init__(block_length)
        self.columns_run: list[int] = []

    def ran(self, columns: slice) -> None:
        super().ran(columns)
        self.columns_run.append(columns.stop - columns.start)


@contextmanager
def counting(model: Trunk) -> Iterator[list[int]]:
    """Count the distinct experts that each router chooses."""
    counts: list[int] = []

    def count(_: object, __: object, route: tuple[Tensor, Tensor]) -> None:
        counts.append(len(set(route[1].flatten().tolist())))

    hooks = [module.register_forward_hook(count) for module in model.modules() if isinstance(module, Router)]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def qwen3_forward(timer: FamilyTimer, batch: int) -> float:
    """Return the milliseconds of transformers' Qwen3 on a block of new columns after cached ones, uncompiled.

    SDAR's own code builds on these layers. Its mask and its loop are not in this time.
    """
    library: Any = import_module("transformers")
    weight, model = timer.model.embed.weight, qwen3.get("model")
    if model is None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        others = ("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
        config = library.Qwen3Config(**{name: timer.job.config[name] for name in (*sizes, *others)})
        with torch.device("meta"):
            built = library.Qwen3ForCausalLM(config).to(weight.dtype).eval()
        model = qwen3["model"] = built.to_empty(device=weight.device)
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02)
        rotations = type(model.model.rotary_emb)(config).to(weight.device)  # its buffers were on meta too
        model.model.rotary_emb = rotations
    tokens = timer.canvas(batch).tokens
    before, cache = tokens[:, : timer.sizes.prompt], library.DynamicCache()
    model(before, past_key_values=cache, logits_to_keep=1)
    new = tokens[:, timer.window("append")]

    def forward() -> None:
        model(new, past_key_values=cache)
        cache.crop(-new.shape[1])

    return timer.milliseconds(forward)


qwen3: dict[str, Any] = {}  # the model, which is built only once


if __name__ == "__main__":
    main(sys.argv[1])
