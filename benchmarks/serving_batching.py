"""Compare continuous with static batching on the same Poisson arrivals.

python benchmarks/serving_batching.py MODEL [--requests 100] [--rate 20] [--max-batch 8] [--out FILE.json]

Static: whenever the model is free, it decodes all waiting requests together (at most a batch), with
`unmask.generate`. All rows of a batch are as long as its longest request.
Continuous: the engine, with one forward for rows of similar length.
Continuous, exact: the engine, with one forward per row, the default of `unmask serve` on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import unmask
from unmask.serving import Engine, Limits

SAMPLER = unmask.make_sampler("less")
Run = Callable[[Any, list["Arrival"], int], list[float]]


@dataclass(frozen=True)
class Arrival:
    """A request and its arrival time."""

    at: float  # seconds from the start
    prompt: str
    length: int


class Round(NamedTuple):
    """The result of one plan."""

    plan: list[Arrival]
    seconds: list[float]  # from arrival to answer
    cpu_seconds: float  # CPU time of this process

    def ends(self) -> list[float]:
        """Return when each request was answered, in seconds from the start."""
        return [arrival.at + took for arrival, took in zip(self.plan, self.seconds, strict=True)]


def arrivals(count: int, rate: float, seed: int = 0) -> list[Arrival]:
    """Draw a Poisson process of requests, most of them short."""
    dice, at, made = random.Random(seed), 0.0, []
    for number in range(count):
        at += dice.expovariate(rate)
        made.append(Arrival(at, f"request {number}", dice.choice((16, 16, 32, 64, 128))))
    return made


def config(length: int) -> unmask.GenerationConfig:
    return unmask.GenerationConfig(max_new_tokens=length, block_length=16)


def continuous(model: Any, plan: list[Arrival], max_batch: int, *, exact: bool = False) -> list[float]:
    """Return the seconds from arrival to answer in the engine."""
    with Engine(model, Limits(max_rows=max_batch, max_queue=len(plan)), exact=exact) as engine:
        done: list[float] = [0.0] * len(plan)
        began, jobs = time.perf_counter(), []

        def note(number: int, _: object) -> None:
            done[number] = time.perf_counter() - began

        for number, arrival in enumerate(plan):
            time.sleep(max(0.0, began + arrival.at - time.perf_counter()))
            job = engine.submit(arrival.prompt, SAMPLER, config(arrival.length))
            job.future.add_done_callback(partial(note, number))
            jobs.append(job)
        for job in jobs:
            job.result()
    return [end - arrival.at for end, arrival in zip(done, plan, strict=True)]


def static(model: Any, plan: list[Arrival], max_batch: int) -> list[float]:
    """Return the seconds from arrival to answer, one batch after another."""
    waiting: queue.Queue[int] = queue.Queue()
    done: list[float] = [0.0] * len(plan)
    began = time.perf_counter()

    def send() -> None:
        for number, arrival in enumerate(plan):
            time.sleep(max(0.0, began + arrival.at - time.perf_counter()))
            waiting.put(number)

    sender = threading.Thread(target=send)
    sender.start()
    left = len(plan)
    while left:
        batch = [waiting.get()]
        while len(batch) < max_batch and not waiting.empty():
            batch.append(waiting.get())
        length = max(plan[number].length for number in batch)
        unmask.generate(model, [plan[number].prompt for number in batch], SAMPLER, config(length))
        for number in batch:
            done[number] = time.perf_counter() - began
        left -= len(batch)
    sender.join()
    return [end - arrival.at for end, arrival in zip(done, plan, strict=True)]


WAYS: dict[str, Run] = {
    "static": static,
    "continuous": continuous,
    "continuous, exact": partial(continuous, exact=True),
}


def measure(run: Run, model: Any, plan: list[Arrival], max_batch: int) -> Round:
    """Run one plan in one way."""
    began = time.process_time()
    seconds = run(model, plan, max_batch)
    return Round(plan, seconds, time.process_time() - began)


def report(rounds: list[Round]) -> dict[str, float]:
    """Return throughput and latency of a way over all its rounds."""
    requests = [arrival for one in rounds for arrival in one.plan]
    took = sum(max(one.ends()) for one in rounds)
    cuts = statistics.quantiles([late for one in rounds for late in one.seconds], n=100, method="inclusive")
    return {
        "requests_per_second": len(requests) / took,
        "tokens_per_second": sum(arrival.length for arrival in requests) / took,
        "requests_per_cpu_second": len(requests) / sum(one.cpu_seconds for one in rounds),
        "p50_seconds": cuts[49],
        "p95_seconds": cuts[94],
    }


def draw(ways: dict[str, list[Round]], file: Path) -> None:
    """Draw the requests answered over time in the first round, and the latencies of all rounds."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (over_time, within) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for name, rounds in ways.items():
        ends = sorted(rounds[0].ends())
        [line] = over_time.step(ends, range(1, len(ends) + 1), where="post", label=name)
        late = sorted(late for one in rounds for late in one.seconds)
        within.step(late, [100 * (rank + 1) / len(late) for rank in range(len(late))], where="post")
        within.axvline(report(rounds)["p95_seconds"], color=line.get_color(), linestyle=":", linewidth=1)
    came = [arrival.at for arrival in rounds[0].plan]
    over_time.step(came, range(1, len(came) + 1), "k:", where="post", label="arrived")
    over_time.set(xlabel="seconds", ylabel="requests", title="Answered over time, first round")
    within.set(xlabel="seconds from arrival", ylabel="% answered", title="Latency (dotted: p95)")
    over_time.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=100, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=1, help="each has other arrivals; all ways take turns")
    parser.add_argument("--rate", type=float, default=20.0, help="arrivals per second")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    parser.add_argument("--out", type=Path, help="FILE.json; the figure goes to FILE.png")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = unmask.load(options.model, device=options.device)
    unmask.generate(model, ["warm"], SAMPLER, config(16))
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/serving_batching.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "load_average": [],  # before every round; the machine may be shared
        "torch": torch.__version__,
    }
    ways: dict[str, list[Round]] = {name: [] for name in WAYS}
    for number in range(options.rounds):
        result["load_average"].append(round(os.getloadavg()[0], 1))
        plan = arrivals(options.requests, options.rate, seed=number)
        for name, run in WAYS.items():
            ways[name].append(measure(run, model, plan, options.max_batch))
            print(number, name, json.dumps(report(ways[name][-1:])), flush=True)
    result |= {name: report(rounds) for name, rounds in ways.items()}
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        draw(ways, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
