"""Compare the server under load with offline decoding, in one command, the most important figures first.

    python -m benchmarks.server_gpu --small --rows 4 --max-clients 4 --longest 64 --new-tokens 16 --steps 6
    python -m benchmarks.server_gpu --model llada --device cuda --compile --minutes 7.5 --out FILE.json

The sampler is `base` with a fixed number of steps, so the work does not depend on the weights. Every group of
measurements compiles its shapes first. Measurements that would begin after `--minutes` are left out. The file
is rewritten after each measurement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import unmask
from benchmarks import server_loads as loads
from benchmarks.padding import prompt_lengths
from benchmarks.server import Server, Workload, load_model
from unmask.bench.report import Report, check_names, command_line
from unmask.bench.step import NAMES
from unmask.bench.timing import machine, machine_line, seconds
from unmask.cli.bench import fail_on_problems
from unmask.cli.command import command
from unmask.fast.warm_up import batch_sizes
from unmask.models.trunk import Trunk
from unmask.serving import Limits
from unmask.serving.shapes import round_length, split_rows

PROGRAM = "python -m benchmarks.server_gpu"
CLIENTS_FIRST = (32, 1, 8, 16)  # numbers of clients to try after --rows
CLIENTS_LAST = (128, 64, 4, 2)  # numbers of clients to try after all other loads
BUCKET = 64  # the default of `unmask.compile`
RESERVE = 45  # seconds left for a load after its shapes are compiled
PARTS = ("one_after_another", "offline", "equal", "http", "arrivals", "unlike")
app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Load:
    """The model, the requests and the time limit."""

    model: Annotated[str, typer.Option("--model", "-m", help="A model, a folder, llada or dream.")] = "llada"
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto"
    compile: Annotated[bool, typer.Option("--compile", help="Call unmask.compile on the model.")] = False
    small: Annotated[bool, typer.Option("--small", help="Shrink llada or dream to a miniature.")] = False
    minutes: Annotated[float, typer.Option(help="Begin no measurement after this time.")] = 7.5
    max_clients: Annotated[int, typer.Option(min=1, help="The most concurrent requests.")] = 128
    rows: Annotated[int, typer.Option(min=1, help="Rows of arrivals, bursts and unlike prompts.")] = 32
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of equal prompts.")] = 128
    shortest: Annotated[int, typer.Option(min=1, help="Tokens of the shortest unlike prompt.")] = 32
    longest: Annotated[int, typer.Option(min=1, help="Tokens of the longest unlike prompt.")] = 2048
    new_tokens: Annotated[int, typer.Option(min=1)] = 256
    steps: Annotated[int, typer.Option(min=2, help="Reverse steps per request.")] = 16
    rounds: Annotated[int, typer.Option(min=1, help="Requests of each client that are timed.")] = 1
    poisson: Annotated[float, typer.Option(help="Arrivals per second, as a share of the capacity.")] = 0.8
    parts: Annotated[str, typer.Option(help="Only these parts of the plan: A,B,...")] = ",".join(PARTS)

    def __post_init__(self) -> None:
        check_names("parts", self.parts.split(","), PARTS)

    @property
    def workload(self) -> Workload:
        """The same requests for `benchmarks.server`."""
        return Workload(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            small=self.small,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            steps=self.steps,
        )

    def clients(self, numbers: tuple[int, ...]) -> list[int]:
        """Return the numbers up to --max-clients, without that of --rows."""
        return [number for number in numbers if number <= self.max_clients and number != self.rows]

    def limits(self, rows: int) -> Limits:
        """Return limits that admit this many rows of any length."""
        longest = max(self.prompt_tokens, self.longest)
        return Limits(
            max_rows=rows,
            max_batch_tokens=rows * (longest + self.new_tokens),
            max_queue=10_000,
            max_prompt_tokens=longest,
            max_new_tokens=self.new_tokens,
            max_steps=self.steps,
            deadline=None,
        )

    def command(self, device: torch.device) -> str:
        """Return the command line without the folders of this machine."""
        names = ("dtype", "minutes", "max_clients", "rows", "prompt_tokens", "shortest", "longest")
        options = {name.replace("_", "-"): getattr(self, name) for name in names}
        options |= {"new-tokens": self.new_tokens, "steps": self.steps, "rounds": self.rounds}
        options |= {"parts": self.parts}
        model = {"model": Path(self.model).name, "device": device.type}
        line = command_line(PROGRAM, (model | options).items(), small=self.small)
        return f"{line} --compile" if self.compile else line


class Bench:
    """Measures one model."""

    def __init__(self, model: Trunk, load: Load, device: torch.device, deadline: float) -> None:
        self.model, self.load, self.device, self.deadline = model, load, device, deadline
        self.server = Server(model, load.workload, device)
        self.server.overlap = None  # as `unmask serve` does
        self.config = load.workload.config
        self.capacity = 0.0  # requests per second with `rows` clients

    def one_after_another(self, requests: int = 3) -> dict[str, float]:
        """Decode one request after another without a server, as the released code does."""
        prompts = self.server.prompts(requests)
        self.generate(prompts[:1])
        took = sum(seconds(partial(self.generate, [prompt]), self.device) for prompt in prompts)
        return {"requests_per_second": requests / took}

    def generate(self, prompts: list[list[int]]) -> None:
        """Decode prompts offline."""
        unmask.generate(self.model, prompts, self.server.sampler, self.config)

    def offline(self, rows: int) -> dict[str, float]:
        """Decode a batch with `unmask.generate`."""
        prompts = self.server.prompts(rows)
        self.generate(prompts)
        runs = [seconds(partial(self.generate, prompts), self.device) for _ in range(self.load.rounds)]
        return {"requests_per_second": rows / min(runs)}

    def equal(self, clients: int) -> dict[str, Any]:
        """Serve prompts of equal length in a closed loop."""
        self.warm_up([self.load.prompt_tokens], clients)
        result = self.closed(self.equal_prompts(), clients)
        if clients > self.load.rows:
            return result
        if clients == self.load.rows:
            self.capacity = result["requests_per_second"]
        return result | self.beside_a_forward(clients, result["step_p50_ms"])

    def beside_a_forward(self, rows: int, step_ms: float) -> dict[str, Any]:
        """Compare a step with a bare forward of all rows, and look for gaps between forwards."""
        prompts = self.server.prompts(rows)
        self.server.wave(prompts)  # compiles decisions of this many rows
        forward = self.server.forward_ms(prompts)
        gaps = loads.gaps(self.model, partial(self.server.wave, prompts), self.device)
        return {"forward_ms": forward, "above_forward": step_ms / forward - 1, **gaps}

    def unlike(self, clients: int) -> dict[str, Any]:
        """Serve prompts of different lengths in a closed loop, those that there was time to compile for."""
        began = time.perf_counter()
        drawn = prompt_lengths(0, self.load.shortest, self.load.longest)
        ready = self.warm_up([next(drawn) for _ in range(1000)], clients)
        took = time.perf_counter() - began
        result = self.closed(self.unlike_prompts(ready), clients)
        return result | {"warm_up_seconds": took, "padded_lengths": sorted(ready)}

    def over_http(self, clients: int, *, stream: bool) -> dict[str, Any]:
        """Serve prompts of equal length over HTTP. Their shapes are compiled already."""
        from benchmarks.http_clients import HttpClients  # needs uvicorn

        return self.closed(self.equal_prompts(), clients, partial(HttpClients, stream=stream))

    def closed(
        self, prompts: Iterator[list[int]], clients: int, make_crowd: loads.MakeCrowd = loads.Clients
    ) -> dict[str, Any]:
        """Run a closed loop of clients."""
        return loads.closed_loop(
            self.model,
            self.load.limits(clients),
            prompts,
            self.config,
            clients=clients,
            rounds=self.load.rounds,
            make_crowd=make_crowd,
        )

    def arrivals(self, waits: list[float]) -> dict[str, Any]:
        """Serve prompts of equal length that arrive after these waits."""
        limits = self.load.limits(self.load.rows)
        return loads.open_loop(self.model, limits, self.equal_prompts(), self.config, waits)

    def poisson(self) -> dict[str, Any]:
        """Serve Poisson arrivals below the capacity, for three full batches."""
        if not self.capacity:
            raise RuntimeError("the capacity is not known; the closed loop failed")
        rate = self.load.poisson * self.capacity
        return self.arrivals(loads.poisson(rate, 3 * self.load.rows)) | {"rate": rate}

    def burst(self) -> dict[str, Any]:
        """Serve twice as many requests as there are rows, all at once."""
        return self.arrivals([0.0] * (2 * self.load.rows))

    def equal_prompts(self) -> Iterator[list[int]]:
        """Yield prompts of equal length, without end."""
        return chain.from_iterable(self.server.prompts(rows) for rows in count(1))

    def unlike_prompts(self, ready: set[int]) -> Iterator[list[int]]:
        """Yield prompts of different lengths without end, but only those that are padded to these lengths."""
        for tokens in prompt_lengths(0, self.load.shortest, self.load.longest):
            if self.padded(tokens) in ready:
                yield self.prompt(tokens)

    def padded(self, tokens: int) -> int:
        """Return the length that a prompt and its answer are padded to."""
        return round_length(tokens + self.load.new_tokens, BUCKET)

    def prompt(self, tokens: int) -> list[int]:
        """Return a prompt of this many tokens."""
        return Server(self.model, replace(self.load.workload, prompt_tokens=tokens), self.device).prompts(1)[
            0
        ]

    def warm_up(self, prompt_tokens: list[int], rows: int) -> set[int]:
        """Run once every shape that a compiled model may need for up to `rows` of these prompts.

        Stop when time is short, and return the padded lengths that are ready.
        """
        longest: dict[int, int] = {}
        for tokens in sorted(prompt_tokens):
            longest[self.padded(tokens)] = tokens
        if self.model.runner is None:
            return set(longest)
        ready: set[int] = set()
        for length in sorted(longest, key=lambda length: (length & -length, length), reverse=True):
            if ready and time.monotonic() > self.deadline - RESERVE:
                break
            sizes = {size for number in range(1, rows + 1) for size in split_rows(number, length)}
            if not ready:  # decisions are compiled for 1, 2, 4, ... rows, whatever their forwards are
                sizes.update(batch_sizes(rows))
            for size in sorted(sizes):
                self.few_steps([self.prompt(longest[length])] * size)
            ready.add(length)
        return ready

    def few_steps(self, prompts: list[list[int]]) -> None:
        """Answer prompts together in two steps."""
        config = replace(self.config, steps=2)
        with loads.running(self.model, self.load.limits(len(prompts)), overlap=False) as (engine, _):
            for job in [engine.submit(prompt, self.server.sampler, config) for prompt in prompts]:
                job.result()


def run_server_gpu(load: Load, out: Path | None) -> dict[str, Any]:
    """Measure in the order of importance, print the table and write the results."""
    deadline = time.monotonic() + 60 * load.minutes
    model, device = load_model(load.workload)
    content: dict[str, Any] = {
        "command": load.command(device),
        "machine": machine(device),
        "model": NAMES.get(load.model, Path(load.model).name),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "compiled": load.compile,
        **{part: {} for part in PARTS},
    }
    report = Report(content, out, deadline, log=typer.echo)
    alone = content["one_after_another"]
    if "one_after_another" in load.parts.split(","):
        report.attempt(alone, "plain", Bench(model, load, device, deadline).one_after_another)
    if load.compile:
        model = unmask.compile(model)
    bench = Bench(model, load, device, deadline)
    main = load.rows

    def equal(clients: int) -> tuple[str, str, Any]:
        return "equal", str(clients), partial(bench.equal, clients)

    plan: list[tuple[str, str, Any]] = [
        equal(main),
        ("offline", str(main), partial(bench.offline, main)),
        ("one_after_another", "compiled" if load.compile else "again", bench.one_after_another),
        ("http", str(main), partial(bench.over_http, main, stream=False)),
        ("http", f"{main} streams", partial(bench.over_http, main, stream=True)),
        *map(equal, load.clients(CLIENTS_FIRST)),
        ("arrivals", "poisson", bench.poisson),
        ("arrivals", "burst", bench.burst),
        ("unlike", str(load.rows), partial(bench.unlike, load.rows)),
        *map(equal, load.clients(CLIENTS_LAST)),
    ]
    for part, name, work in [one for one in plan if one[0] in load.parts.split(",")]:
        typer.echo(f"{part}, {name}: {time.monotonic() + 60 * load.minutes - deadline:.0f} s")
        report.attempt(content[part], name, work)
        add_ratios(content)
        report.write()
    typer.echo(f"\n{table(content)}")
    return report.result()


def add_ratios(content: dict[str, Any]) -> None:
    """Compare the server with offline batches and with one request after another."""
    for name, run in (*content["equal"].items(), *content["http"].items()):
        clients = name.partition(" ")[0]
        if clients in content["offline"]:
            rate = content["offline"][clients]["requests_per_second"]
            run["of_offline"] = run["requests_per_second"] / rate
        if "plain" in content["one_after_another"]:
            rate = content["one_after_another"]["plain"]["requests_per_second"]
            run["over_one_after_another"] = run["requests_per_second"] / rate


COLUMNS = {
    "requests/s": ("requests_per_second", "{:.2f}"),
    "of offline": ("of_offline", "{:.2f}"),
    "over one by one": ("over_one_after_another", "{:.2f}"),
    "first text p50, s": ("first_text_p50_s", "{:.2f}"),
    "answer p50, s": ("answer_p50_s", "{:.2f}"),
    "answer p95, s": ("answer_p95_s", "{:.2f}"),
    "step p50, ms": ("step_p50_ms", "{:.2f}"),
    "p95 / p50": ("step_p95_over_p50", "{:.3f}"),
    "step above forward": ("above_forward", "{:+.1%}"),
    "longest gap, ms": ("gap_max_ms", "{:.2f}"),
}


def table(content: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"`{content['command']}`, {machine_line(content['machine'])}",
        "",
        f"| load | {' | '.join(COLUMNS)} |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for part in PARTS:
        for name, run in content[part].items():
            cells = [form.format(run[key]) if key in run else "" for key, form in COLUMNS.values()]
            lines.append(f"| {part.replace('_', ' ')}, {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def server_gpu(
    load: Load, out: Annotated[Path | None, typer.Option("--out", help="Results file, JSON.")] = None
) -> None:
    """Time the server at several numbers of clients, with arrivals, bursts and prompts of unequal length."""
    fail_on_problems(run_server_gpu(load, out))


app.command()(command(server_gpu))

if __name__ == "__main__":
    app()
