"""Time the server on a model that attends in blocks, with exact caches and prompts of different lengths.

    python -m benchmarks.server_blocks --family sdar --device cuda --out FILE.json     # SDAR-8B's shape
    python -m benchmarks.server_blocks --family llada2 --small                         # a smoke test

All requests of a wave are submitted before the engine starts. They are timed plain and compiled, and compared
with one batch of `unmask.generate` on the same prompts. The weights are random, and `base` takes the same
steps whatever they are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

import unmask
from benchmarks.padding import prompt_lengths
from benchmarks.server import NumberTokenizer, TickLog
from unmask.bench.device import full_size_device
from unmask.bench.report import Report, check_names, command_line
from unmask.bench.step import SHAPES
from unmask.bench.timing import machine, machine_line
from unmask.cli.bench import fail_on_problems
from unmask.cli.command import command
from unmask.errors import one_of
from unmask.models.checkpoint.save import random_model
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Limits

PROGRAM = "python -m benchmarks.server_blocks"
FAMILIES = ("sdar", "llada2")
WAYS = ("plain", "compiled")
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Waves:
    """The model and the requests."""

    family: Annotated[str, typer.Option(help="sdar or llada2.")] = "sdar"
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None
    small: Annotated[bool, typer.Option("--small", help="Shrink the model to a miniature.")] = False
    ways: Annotated[str, typer.Option(help="plain, compiled or both.")] = ",".join(WAYS)
    rows: Annotated[str, typer.Option(help="Numbers of concurrent requests.")] = "1,8,32"
    shortest: Annotated[int, typer.Option(min=1, help="Tokens of the shortest prompt.")] = 32
    longest: Annotated[int, typer.Option(min=1, help="Tokens of the longest prompt.")] = 384
    new_tokens: Annotated[int, typer.Option(min=1)] = 64
    rounds: Annotated[int, typer.Option(min=1, help="Timed waves, after one to warm up.")] = 2
    minutes: Annotated[float, typer.Option(help="Begin no measurement after this time.")] = 4.0

    def __post_init__(self) -> None:
        one_of("family", self.family, FAMILIES)
        check_names("ways", self.ways.split(","), WAYS)

    def command(self, device: torch.device) -> str:
        """Return the command line."""
        names = ("family", "ways", "rows", "shortest", "longest", "new_tokens", "rounds", "minutes")
        options = {name.replace("_", "-"): getattr(self, name) for name in names} | {"device": device.type}
        return command_line(PROGRAM, options.items(), small=self.small)


@dataclass(frozen=True, slots=True)
class Timer:
    """Sends waves of requests through an engine."""

    model: Trunk
    waves: Waves

    def prompts(self, rows: int) -> list[list[int]]:
        """Return prompts of random length, the same for every way to run the model."""
        info, draw = self.model.info, torch.Generator().manual_seed(rows)
        ordinary = min(info.mask_id, info.pad_id, *info.eos_ids)
        lengths = islice(prompt_lengths(rows, self.waves.shortest, self.waves.longest), rows)
        return [torch.randint(ordinary, (length,), generator=draw).tolist() for length in lengths]

    def measure(self, rows: int) -> dict[str, Any]:
        """Time waves of `rows` requests, and one batch of all of them."""
        prompts = self.prompts(rows)
        config = unmask.GenerationConfig(max_new_tokens=self.waves.new_tokens, stop_at_eos=False)
        runs = [self.serve(prompts, config) for _ in range(1 + self.waves.rounds)]
        timed, ticks = runs[1:], [tick for _, log in runs[1:] for tick in log.ticks]
        full = sorted(tick.seconds * 1e3 for tick in ticks if tick.rows == rows)
        offline = [self.generate(prompts, config) for _ in range(2)][-1]
        seconds = sum(each for each, _ in timed)
        slowest = sorted(ticks, key=lambda tick: tick.seconds, reverse=True)[:6]
        return {
            "requests_per_second": rows * len(timed) / seconds,
            "tokens_per_second": rows * len(timed) * self.waves.new_tokens / seconds,
            "offline_requests_per_second": rows / offline,
            "of_offline": rows * len(timed) / seconds / (rows / offline),
            "step_ms_p50": median(full),
            "step_ms_p95": full[int(0.95 * (len(full) - 1))],
            "forwards_per_step": sum(tick.evaluations for tick in ticks) / len(ticks),
            "first_wave_seconds": runs[0][0],
            "slowest_ticks_ms": [round(tick.seconds * 1e3, 2) for tick in slowest],
        }

    def serve(
        self, prompts: Sequence[Sequence[int]], config: unmask.GenerationConfig
    ) -> tuple[float, TickLog]:
        """Answer all prompts, and return the seconds and the steps."""
        log, tokens = TickLog(), self.waves.longest + 2 * self.waves.new_tokens
        limits = Limits(
            max_rows=len(prompts),
            max_queue=len(prompts),
            max_batch_tokens=2 * len(prompts) * tokens,
            max_prompt_tokens=tokens,
            deadline=None,
        )
        engine = Engine(self.model, limits, log)
        began = time.perf_counter()
        jobs = [engine.submit(prompt, unmask.Base(), config) for prompt in prompts]
        with engine:
            for job in jobs:
                job.result()
        return time.perf_counter() - began, log

    def generate(self, prompts: Sequence[Sequence[int]], config: unmask.GenerationConfig) -> float:
        """Decode all prompts in one batch, and return the seconds."""
        began = time.perf_counter()
        unmask.generate(self.model, list(prompts), unmask.Base(), config, batch_size=len(prompts))
        return time.perf_counter() - began


def run_waves(waves: Waves, out: Path | None) -> dict[str, Any]:
    """Measure every way and number of rows, print the table and write the results."""
    device, shape = full_size_device(waves.device, small=waves.small), SHAPES["families"][waves.family]
    config = shape["published"] | (shape["tiny"] if waves.small else {})
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = random_model(config, device=device, dtype=dtype)
    model.tokenizer = NumberTokenizer()  # type: ignore[assignment]
    deadline = time.monotonic() + 60 * waves.minutes
    content: dict[str, Any] = {
        "command": waves.command(device),
        "machine": machine(device),
        "model": shape["name"],
        "runs": {},
    }
    report = Report(content, out, deadline, log=typer.echo)
    for way in waves.ways.split(","):
        if way == "compiled":
            unmask.compile(model, layers=device.type == "cuda")
        for rows in waves.rows.split(","):
            typer.echo(f"{way}, {rows} at a time")
            work = partial(Timer(model, waves).measure, int(rows))
            report.attempt(content["runs"], f"{way}, {rows}", work)
    typer.echo(f"\n{table(content)}")
    report.write()
    return report.result()


def table(content: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"`{content['command']}`, {content['model']}, {machine_line(content['machine'])}",
        "",
        "| requests at a time | requests/s | offline | step p50, ms | p95 | forwards per step | warm-up, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in content["runs"].items():
        lines.append(
            f"| {name} | {run['requests_per_second']:.2f} | {run['offline_requests_per_second']:.2f} "
            f"| {run['step_ms_p50']:.2f} | {run['step_ms_p95']:.2f} | {run['forwards_per_step']:.2f} "
            f"| {run['first_wave_seconds']:.0f} |"
        )
    return "\n".join(lines)


def server_blocks(
    waves: Waves, out: Annotated[Path | None, typer.Option("--out", help="Results file, JSON.")] = None
) -> None:
    """Time the server on a model that attends in blocks."""
    fail_on_problems(run_waves(waves, out))


app.command()(command(server_blocks))

if __name__ == "__main__":
    app()
