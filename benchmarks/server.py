"""Measure the requests per second of the serving engine, and the cost of its step over a bare forward.

    python -m benchmarks.server --model mini-llada --rows 1,2 --new-tokens 32 --steps 8     # a smoke test
    python -m benchmarks.server --model llada --device cuda --compile --out FILE.json       # LLaDA-8B's shape

Each wave submits as many requests as there are rows, starts an engine and waits for all answers. The sampler
is `base` with a fixed number of steps, so every wave takes the same steps whatever the weights are. `--model`
accepts a shipped model, a checkpoint folder, or `llada` or `dream` for random weights in the published shape.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import torch
import typer

import unmask
from unmask.bench.device import full_size_device
from unmask.bench.internals import all_bytes
from unmask.bench.report import Report, command_line
from unmask.bench.step import NAMES, full_size
from unmask.bench.timing import machine, machine_line, memory_peaks, milliseconds, watch_memory
from unmask.cli.bench import fail_on_problems
from unmask.cli.command import command
from unmask.errors import whole
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Limits
from unmask.serving.monitor import NoMonitor, Tick

PROGRAM = "python -m benchmarks.server"
FORWARDS = 20  # bare forwards per batch size, fewer if they are long
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The model and the requests."""

    model: Annotated[str, typer.Option("--model", "-m", help="A model, a folder, llada or dream.")] = (
        "mini-llada"
    )
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto"
    compile: Annotated[bool, typer.Option("--compile", help="Call unmask.compile on the model.")] = False
    small: Annotated[bool, typer.Option("--small", help="Shrink llada or dream to a miniature.")] = False
    rows: Annotated[str, typer.Option(help="Numbers of concurrent requests.")] = "1,8,32"
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 128
    new_tokens: Annotated[int, typer.Option(min=1)] = 256
    steps: Annotated[int, typer.Option(min=1, help="Reverse steps per request.")] = 32
    rounds: Annotated[int, typer.Option(min=1, help="Timed waves, after one to warm up.")] = 3

    def __post_init__(self) -> None:
        if not self.row_counts:
            raise ValueError(f"--rows must be numbers such as 1,8,32; got {self.rows!r}")
        for count in self.row_counts:
            whole("--rows", count, 1)
        if self.steps > self.new_tokens:
            raise ValueError(f"--steps must be at most --new-tokens, {self.new_tokens}; got {self.steps}")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"--dtype must be auto, float32 or bfloat16; got {self.dtype!r}")

    @property
    def row_counts(self) -> list[int]:
        """The numbers of concurrent requests."""
        words = [word.strip() for word in self.rows.split(",") if word.strip()]
        if not all(word.isdecimal() for word in words):
            raise ValueError(f"--rows must be numbers such as 1,8,32; got {self.rows!r}")
        return [int(word) for word in words]

    @property
    def is_random(self) -> bool:
        """Whether the model is a published shape with random weights."""
        return self.model in NAMES

    @property
    def config(self) -> unmask.GenerationConfig:
        """Settings for full-sequence decoding that takes all its steps."""
        return unmask.GenerationConfig(
            max_new_tokens=self.new_tokens, steps=self.steps, block_length=None, stop_at_eos=False
        )

    def limits(self, rows: int) -> Limits:
        """Return limits that admit all requests of a wave at once."""
        return Limits(
            max_rows=rows,
            max_batch_tokens=rows * (self.prompt_tokens + self.new_tokens),
            max_queue=rows,
            max_prompt_tokens=self.prompt_tokens,
            max_new_tokens=self.new_tokens,
            max_steps=self.steps,
            deadline=None,
        )

    def command(self, device: torch.device) -> str:
        """Return the command line without the folders of this machine."""
        options: dict[str, object] = {
            "model": Path(self.model).name,
            "device": device.type,
            "dtype": self.dtype,
            "rows": self.rows,
            "prompt-tokens": self.prompt_tokens,
            "new-tokens": self.new_tokens,
            "steps": self.steps,
            "rounds": self.rounds,
        }
        line = command_line(PROGRAM, options.items(), small=self.small)
        return f"{line} --compile" if self.compile else line


class NumberTokenizer:
    """Writes token ids as numbers, for a model with random weights."""

    class Special(NamedTuple):
        bos: int | None = None
        pad: int | None = None

    special = Special()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token} " for token in token_ids)

    def chat(self, messages: Sequence[Any]) -> list[int]:
        raise ValueError("a model with random weights has no chat template; send token ids")


class TickLog(NoMonitor):
    """Records every step of an engine."""

    def __init__(self) -> None:
        self.ticks: list[Tick] = []

    def stepped(self, tick: Tick) -> None:
        self.ticks.append(tick)


class Wave(NamedTuple):
    """One wave of requests."""

    seconds: float  # from the first submission to the last answer
    ticks: list[Tick]


class Server:
    """Sends waves of requests through an engine."""

    def __init__(self, model: Trunk, workload: Workload, device: torch.device) -> None:
        self.model = model
        self.workload = workload
        self.device = device
        self.sampler = unmask.make_sampler("base")
        self.overlap: bool | None = False  # run whole batches, so that a step compares with a forward

    def measure(self, rows: int) -> dict[str, Any]:
        """Time waves of `rows` requests, and right after them a bare forward of the same shape."""
        prompts = self.prompts(rows)
        watch_memory(self.device)
        first = self.wave(prompts)  # compiles and records
        peaks = memory_peaks(self.device, above=all_bytes(self.model))
        waves = [self.wave(prompts) for _ in range(self.workload.rounds)]
        forward = self.forward_ms(prompts)
        steps = [tick.seconds * 1e3 for wave in waves for tick in wave.ticks if tick.rows == rows]
        seconds = sum(wave.seconds for wave in waves)
        return {
            "rows": rows,
            "requests_per_second": rows * len(waves) / seconds,
            "tokens_per_second": rows * len(waves) * self.workload.new_tokens / seconds,
            "engine_step_ms": median(steps),
            "run_step_ms": seconds * 1e3 / sum(len(wave.ticks) for wave in waves),
            "forward_ms": forward,
            "above_forward": median(steps) / forward - 1,
            "forwards_per_step": sum(t.evaluations for w in waves for t in w.ticks) / len(steps),
            "first_wave_seconds": first.seconds,
            **peaks,
        }

    def prompts(self, rows: int) -> list[list[int]]:
        """Return random prompts of ordinary tokens."""
        info, generator = self.model.info, torch.Generator().manual_seed(rows)
        ordinary = min(info.mask_id, info.pad_id, *info.eos_ids)
        return torch.randint(ordinary, (rows, self.workload.prompt_tokens), generator=generator).tolist()

    def wave(self, prompts: Sequence[Sequence[int]]) -> Wave:
        """Answer all prompts. They are submitted before the engine starts, so that they share every step."""
        log = TickLog()
        engine = Engine(self.model, self.workload.limits(len(prompts)), log, overlap=self.overlap)
        began = time.perf_counter()
        try:
            jobs = [engine.submit(prompt, self.sampler, self.workload.config) for prompt in prompts]
            engine.start()
            answers = [job.result() for job in jobs]
            seconds = time.perf_counter() - began
        finally:
            engine.close(now=True)
        taken = {answer.steps for answer in answers}
        if taken != {self.workload.steps}:
            raise RuntimeError(
                f"requests must take {self.workload.steps} steps each, but took {sorted(taken)}"
            )
        return Wave(seconds, log.ticks)

    @torch.no_grad()
    def forward_ms(self, prompts: Sequence[Sequence[int]]) -> float:
        """Return the milliseconds of one forward over all rows, with the head on the generation."""
        info, start = self.model.info, self.workload.prompt_tokens
        canvas = unmask.blank(
            prompts, self.workload.new_tokens, mask_id=info.mask_id, pad_id=info.pad_id, device=self.device
        )
        window = slice(start, start + self.workload.new_tokens)
        forward = partial(self.model, canvas.tokens, None, window, None)
        return milliseconds(forward, runs=FORWARDS, warmups=3, device=self.device)


def load_model(workload: Workload) -> tuple[Trunk, torch.device]:
    """Load the model or draw its weights, and compile it if asked."""
    if workload.is_random:
        device = full_size_device(workload.device, small=workload.small)
        dtype = None if workload.dtype == "auto" else getattr(torch, workload.dtype)
        model = full_size(workload.model, device, small=workload.small, dtype=dtype)
        model.tokenizer = NumberTokenizer()  # type: ignore[assignment]
    else:
        model = unmask.load(workload.model, device=workload.device or "auto", dtype=workload.dtype)
        device = next(model.parameters()).device
    return unmask.compile(model) if workload.compile else model, device


def run_server(workload: Workload, out: Path | None) -> dict[str, Any]:
    """Measure every number of rows, print the table and write the results."""
    model, device = load_model(workload)
    content: dict[str, Any] = {
        "command": workload.command(device),
        "machine": machine(device),
        "model": NAMES.get(workload.model, Path(workload.model).name),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "compiled": workload.compile,
        "runs": {},
    }
    report = Report(content, out, deadline=float("inf"), log=typer.echo)
    server = Server(model, workload, device)
    for rows in workload.row_counts:
        typer.echo(f"{rows} at a time")
        report.attempt(content["runs"], str(rows), partial(server.measure, rows))
    typer.echo(f"\n{table(content)}")
    report.write()
    return report.result()


def table(content: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}",
        "",
        "| requests at a time | requests/s | engine step, ms | bare forward, ms | step above forward |",
        "|---|---|---|---|---|",
    ]
    for run in content["runs"].values():
        lines.append(
            f"| {run['rows']} | {run['requests_per_second']:.2f} | {run['engine_step_ms']:.2f} "
            f"| {run['forward_ms']:.2f} | {run['above_forward']:+.1%} |"
        )
    return "\n".join(lines)


def server(
    workload: Workload, out: Annotated[Path | None, typer.Option("--out", help="Results file, JSON.")] = None
) -> None:
    """Time the serving engine at several numbers of concurrent requests."""
    fail_on_problems(run_server(workload, out))


app.command()(command(server))

if __name__ == "__main__":
    app()
