"""Run many streams at once against a real server. Every text must equal the offline one. Nothing may leak.

python benchmarks/serving_load.py MODEL [--streams 200] [--seconds 120] [--asks 60] [--out FILE.json]

`--streams` clients send one request after another for `--seconds`, and wait for the last answers. The exit
code is 1 if a text is wrong, a stream fails or stalls, memory grows, or the server keeps rows or files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import torch

import unmask

SAMPLERS = ("less", "base", "threshold", "klass", "prophet", "entropy-bound", "less-released", "random")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "dog", "near", "old", "trees")
WARM_UP = 0.25  # share of the time in which memory may grow
STALLED = 35.0  # seconds without an event; the server sends a comment every 15
MOST_GROWTH = 0.1


@dataclass(frozen=True)
class Ask:
    """One request, and its offline answer."""

    body: dict[str, Any]
    text: str


@dataclass(frozen=True)
class Answer:
    """The text and the timing of one stream."""

    text: str
    first: float  # seconds to the first text
    seconds: float
    silence: float  # the longest time without an event
    tokens: int


@dataclass
class Tally:
    """The outcome of all requests, and the server's memory over time."""

    answers: list[Answer] = field(default_factory=list)
    wrong: int = 0
    refused: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    resident: list[tuple[float, float]] = field(default_factory=list)  # seconds, MB


def make_asks(model: Any, count: int, seed: int) -> list[Ask]:
    """Draw requests of mixed lengths and samplers, with the texts of `unmask.generate`."""
    dice = random.Random(seed)
    asks = []
    for number in range(count):
        body: dict[str, Any] = {
            "prompt": " ".join(dice.choice(WORDS) for _ in range(dice.randrange(1, 30))),
            "max_tokens": dice.choice((8, 16, 32, 48, 64)),
            "sampler": SAMPLERS[number % len(SAMPLERS)],
            "temperature": dice.choice((0.0, 0.0, 0.7)),
            "seed": number,
        }
        config = unmask.GenerationConfig(
            max_new_tokens=body["max_tokens"], temperature=body["temperature"], seed=number
        )
        [answer] = unmask.generate(model, [body["prompt"]], unmask.make_sampler(str(body["sampler"])), config)
        asks.append(Ask(body, answer.text))
    return asks


async def listen(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    """Read one stream to its end."""
    began = last = time.perf_counter()
    first, silence, pieces, tokens = 0.0, 0.0, [], 0
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=request) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            now = time.perf_counter()
            silence, last = max(silence, now - last), now
            if not line.startswith("data: {"):
                continue
            data = json.loads(line[6:])
            if "error" in data:
                raise RuntimeError(data["error"]["message"])
            tokens = data.get("usage", {}).get("completion_tokens", tokens)
            if data["choices"] and data["choices"][0]["text"]:
                first = first or now - began
                pieces.append(data["choices"][0]["text"])
    return Answer("".join(pieces), first, time.perf_counter() - began, silence, tokens)


async def keep_asking(client: httpx.AsyncClient, asks: Iterator[Ask], until: float, tally: Tally) -> None:
    """Send one request after another until the time is over."""
    while time.perf_counter() < until:
        ask = next(asks)
        try:
            answer = await listen(client, ask.body)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 429:
                tally.errors[f"status {error.response.status_code}"] += 1
                continue
            tally.refused += 1
            await asyncio.sleep(float(error.response.headers["retry-after"]))
        except (httpx.HTTPError, RuntimeError) as error:
            tally.errors[f"{type(error).__name__}: {error}"] += 1
        else:
            tally.answers.append(answer)
            tally.wrong += answer.text != ask.text


async def weigh(pid: int, tally: Tally) -> None:
    """Record the server's memory every second."""
    began = time.perf_counter()
    while True:
        tally.resident.append((time.perf_counter() - began, memory(pid)))
        await asyncio.sleep(1)


async def storm(url: str, pid: int, asks: list[Ask], options: argparse.Namespace) -> tuple[Tally, float]:
    """Run all clients at the same time. Return the tally and the seconds to the last answer."""
    tally, began = Tally(), time.perf_counter()
    weighing = asyncio.create_task(weigh(pid, tally))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        turn, until = cycle(asks), began + options.seconds
        await asyncio.gather(*(keep_asking(client, turn, until, tally) for _ in range(options.streams)))
    weighing.cancel()
    return tally, time.perf_counter() - began


def memory(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} does not report its memory")


def files(pid: int) -> int:
    """Return the number of open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def start(options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server and wait until it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "unmask", "serve", options.model, "--port", str(port), "--device", "cpu"]
    command += ["--max-batch", str(options.max_batch), "--threads", str(options.threads)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            httpx.get(f"{url}/readyz").raise_for_status()
        except httpx.ConnectError:
            time.sleep(0.1)
        else:
            return process, url
    raise RuntimeError("the server did not start")


def growth(resident: list[tuple[float, float]], seconds: float) -> dict[str, float]:
    """Return the memory after the warm-up and at the end, each the median of ten seconds."""
    begin = seconds * WARM_UP
    warm = statistics.median(mb for at, mb in resident if begin <= at <= begin + 10)
    end = statistics.median(mb for at, mb in resident if seconds - 10 <= at <= seconds)
    return {"after_warm_up_mb": round(warm, 1), "at_the_end_mb": round(end, 1), "growth": end / warm - 1}


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def report(tally: Tally, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a run."""
    answers = tally.answers
    return {
        "streams": options.streams,
        "seconds_of_load": options.seconds,
        "seconds_to_the_last_answer": seconds,
        "completed": len(answers),
        "wrong_texts": tally.wrong,
        "refused_with_429": tally.refused,
        "errors": dict(tally.errors),
        "stalled": sum(one.silence > STALLED for one in answers),
        "longest_silence_seconds": max(one.silence for one in answers),
        "tokens_per_second": sum(one.tokens for one in answers) / seconds,
        "p50_seconds": percentile([one.seconds for one in answers], 0.5),
        "p95_seconds": percentile([one.seconds for one in answers], 0.95),
        "p95_first_text": percentile([one.first or one.seconds for one in answers], 0.95),
        "resident": growth(tally.resident, options.seconds),
    }


def surroundings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the command and the facts about the machine."""
    return {
        "command": " ".join(["python", "benchmarks/serving_load.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "threads": options.threads,
        "load_average": [round(value, 1) for value in os.getloadavg()],  # the machine may be shared
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--asks", type=int, default=60, help="number of different requests")
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the server's model")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)  # as in the server, because the number affects rounding
    result = surroundings(options)
    model = unmask.load(options.model, device="cpu")
    process, url = start(options)
    try:
        asks = make_asks(model, options.asks, seed=0)
        before = files(process.pid)
        tally, seconds = asyncio.run(storm(url, process.pid, asks, options))
        result |= report(tally, seconds, options)
        time.sleep(1)  # let both sides close their connections
        result["open_files"] = {"before": before, "after": files(process.pid)}
        page = httpx.get(f"{url}/metrics").text
        result["idle_at_the_end"] = all(
            f"unmask_{name}_requests 0.0" in page for name in ("queue", "running")
        )
    finally:
        process.terminate()
        process.wait(30)
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    grown = result["resident"]["growth"] > MOST_GROWTH or result["open_files"]["after"] > before + 2
    failed = result["wrong_texts"] or result["errors"] or result["stalled"] or not result["idle_at_the_end"]
    sys.exit(bool(failed or grown))


if __name__ == "__main__":
    main()
