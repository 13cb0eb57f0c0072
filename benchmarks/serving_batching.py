"""Continuous against static batching on the same Poisson arrivals.

python benchmarks/serving_batching.py MODEL [--requests 100] [--rate 20] [--max-batch 8] [--out FILE.json]

Static: whenever the model is free, all that wait (at most a batch) are decoded together to the end, as
`unmask.generate` does; requests of a batch share their length, the longest one's, and are cut to their own.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.serving import Engine, Limits


@dataclass(frozen=True)
class Arrival:
    """A request and when it comes."""

    at: float  # seconds from the start
    prompt: str
    length: int


def arrivals(count: int, rate: float, seed: int = 0) -> list[Arrival]:
    """A Poisson process of requests, most of them short."""
    dice, at, made = random.Random(seed), 0.0, []
    for number in range(count):
        at += dice.expovariate(rate)
        made.append(Arrival(at, f"request {number}", dice.choice((16, 16, 32, 64, 128))))
    return made


def config(length: int) -> unmask.GenerationConfig:
    return unmask.GenerationConfig(max_new_tokens=length, block_length=16)


def continuous(model: Any, plan: list[Arrival], max_batch: int) -> list[float]:
    """Seconds from arrival to answer, in the engine."""
    with Engine(model, Limits(max_rows=max_batch, max_queue=len(plan))) as engine:
        done: list[float] = [0.0] * len(plan)
        began, jobs = time.perf_counter(), []
        for number, arrival in enumerate(plan):
            time.sleep(max(0.0, began + arrival.at - time.perf_counter()))
            job = engine.submit(arrival.prompt, config=config(arrival.length))
            job.future.add_done_callback(
                lambda _, number=number: done.__setitem__(number, time.perf_counter() - began)
            )
            jobs.append(job)
        for job in jobs:
            job.result()
    return [end - arrival.at for end, arrival in zip(done, plan, strict=True)]


def static(model: Any, plan: list[Arrival], max_batch: int) -> list[float]:
    """The same, batch after batch."""
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
        unmask.generate(model, [plan[number].prompt for number in batch], config=config(length))
        for number in batch:
            done[number] = time.perf_counter() - began
        left -= len(batch)
    sender.join()
    return [end - arrival.at for end, arrival in zip(done, plan, strict=True)]


def report(plan: list[Arrival], seconds: list[float]) -> dict[str, float]:
    """Throughput and latency of a run."""
    end = max(arrival.at + took for arrival, took in zip(plan, seconds, strict=True))
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "requests_per_second": len(plan) / end,
        "tokens_per_second": sum(arrival.length for arrival in plan) / end,
        "p50_seconds": cuts[49],
        "p95_seconds": cuts[94],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=20.0, help="arrivals per second")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = unmask.load(options.model, device=options.device)
    plan = arrivals(options.requests, options.rate)
    unmask.generate(model, ["warm"], config=config(16))
    result: dict[str, Any] = {"requests": options.requests, "rate": options.rate}
    for name, run in (("static", static), ("continuous", continuous)):
        result[name] = report(plan, run(model, plan, options.max_batch))
        print(name, json.dumps(result[name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
