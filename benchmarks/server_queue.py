"""Test the order in which the server queues its work, on a simulated device.

    python -m benchmarks.server_queue --clients 8,16,32
    python -m benchmarks.server_queue --clients 8,16,32 --wait-on-join
    python -m benchmarks.server_queue --clients 8,16,32 --http

A tiny model decodes on the CPU. Each forward occupies a simulated device for as long as one of LLaDA-8B would
occupy an H200. With `--wait-on-join` the host waits for the whole queue whenever a request takes its first
step, as it would for a copy from the device. With `--http` the requests come over HTTP, as streams.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import torch

from benchmarks import server_loads
from benchmarks.server import load_model
from benchmarks.server_gpu import Bench, Load
from unmask.serving import stepper
from unmask.serving.batch import Decided, run_forward, start_reading
from unmask.serving.request import RunningRequest
from unmask.serving.shapes import split_rows

MILLISECONDS = {1: 10.1, 2: 19.5, 4: 37.0, 8: 73.0}  # rows of COLUMNS -> time of a forward
COLUMNS = 384
LOAD = Load(device="cpu", small=True, prompt_tokens=16, longest=16, new_tokens=32, steps=16)


class Device:
    """A device that runs what is queued, one piece after another."""

    def __init__(self, *, wait_on_join: bool) -> None:
        self.wait_on_join = wait_on_join
        self.free_at = 0.0

    def run_forward(self, model: Any, requests: Sequence[RunningRequest], *where: Any, **how: Any) -> None:
        """Queue a forward. Its output exists at once, but must not be read yet."""
        run_forward(model, requests, *where, **how)
        took = MILLISECONDS[len(requests)] / 1e3
        self.free_at = max(self.free_at, time.perf_counter()) + took

    def start_reading(self, decided: Sequence[Decided]) -> Callable[[], Any]:
        """Let a decision arrive when everything that was queued before it has run."""
        read, arrives = start_reading(decided), self.free_at
        joins = any(part.requests[0].rows.history.seen is None for part in decided)
        if self.wait_on_join and joins:
            wait_until(arrives)

        def arrived() -> Any:
            wait_until(arrives)
            return read()

        return arrived


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


def forward_groups(
    model: object, requests: Sequence[RunningRequest], *, alone: bool
) -> list[list[RunningRequest]]:
    """Group requests as for a compiled model at full size."""
    rows = iter(requests)
    return [list(islice(rows, size)) for size in split_rows(len(requests), COLUMNS)]


def simulate(clients: int, *, wait_on_join: bool = False, http: bool = False) -> dict[str, Any]:
    """Return the figures of a closed loop."""
    device = Device(wait_on_join=wait_on_join)
    columns = LOAD.prompt_tokens + LOAD.new_tokens
    changes: list[tuple[Any, str, Any]] = [
        (stepper, "run_forward", device.run_forward),
        (stepper, "start_reading", device.start_reading),
        (stepper, "forward_groups", forward_groups),
        (stepper, "OVERLAP_COLUMNS", stepper.OVERLAP_COLUMNS * columns // COLUMNS),
        (server_loads, "running", partial(server_loads.running, overlap=True)),
    ]
    model, place = load_model(LOAD.workload)
    bench = Bench(model, LOAD, place, deadline=0.0)
    with ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(patch.object(module, name, value))
        return bench.over_http(clients, stream=True) if http else bench.closed(bench.equal_prompts(), clients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", default="8,16,32")
    parser.add_argument("--wait-on-join", action="store_true")
    parser.add_argument("--http", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| clients | requests/s | answer p50, s | step p50, ms | p95 / p50 |\n|---|---|---|---|---|")
    columns = ("requests_per_second", "answer_p50_s", "step_p50_ms", "step_p95_over_p50")
    for clients in map(int, options.clients.split(",")):
        found = simulate(clients, wait_on_join=options.wait_on_join, http=options.http)
        cells = [f"{found[name]:.2f}" if name in found else "" for name in columns]
        print(f"| {clients} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
