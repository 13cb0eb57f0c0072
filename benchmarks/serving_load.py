"""Many streams at once against a real server: every text must be the offline one, and nothing may leak.

python benchmarks/serving_load.py MODEL [--streams 200] [--rounds 3] [--max-batch 16] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch

import unmask

SAMPLERS = ("less", "base", "threshold", "klass", "prophet", "entropy-bound", "less-released", "random")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "dog", "near", "old", "trees")


@dataclass(frozen=True)
class Ask:
    """One request, and its offline answer."""

    body: dict[str, Any]
    text: str


@dataclass(frozen=True)
class Heard:
    """What a stream said, and when."""

    text: str
    first: float  # seconds to the first text
    seconds: float
    tokens: int


def make_asks(model: Any, count: int, seed: int) -> list[Ask]:
    """Requests of mixed lengths and samplers, with the texts of `unmask.generate`."""
    dice = random.Random(seed)
    asks = []
    for number in range(count):
        body = {
            "prompt": " ".join(dice.choice(WORDS) for _ in range(dice.randrange(1, 30))),
            "max_tokens": dice.choice((8, 16, 32, 48, 64)),
            "sampler": dice.choice(SAMPLERS),
            "temperature": dice.choice((0.0, 0.0, 0.7)),
            "seed": number,
        }
        config = unmask.GenerationConfig(
            max_new_tokens=body["max_tokens"], temperature=body["temperature"], seed=number
        )
        [answer] = unmask.generate(model, [body["prompt"]], unmask.make_sampler(str(body["sampler"])), config)
        asks.append(Ask(body, answer.text))
    return asks


async def listen(client: httpx.AsyncClient, body: dict[str, Any]) -> Heard:
    """One stream to its end."""
    began, first, pieces, tokens = time.perf_counter(), 0.0, [], 0
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=request) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line[6:])
            if "error" in data:
                raise RuntimeError(data["error"]["message"])
            tokens = data.get("usage", {}).get("completion_tokens", tokens)
            if data["choices"] and data["choices"][0]["text"]:
                first = first or time.perf_counter() - began
                pieces.append(data["choices"][0]["text"])
    return Heard("".join(pieces), first, time.perf_counter() - began, tokens)


async def storm(url: str, asks: list[Ask]) -> tuple[list[Heard], float]:
    """All requests at the same time."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        began = time.perf_counter()
        heard = await asyncio.gather(*(listen(client, ask.body) for ask in asks))
        return heard, time.perf_counter() - began


def memory(pid: int) -> float:
    """Resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} tells nothing of its memory")


def start(options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    """A server of its own, once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "unmask", "serve", options.model, "--port", str(port), "--device", "cpu"]
    command += ["--max-batch", str(options.max_batch), "--max-queue", str(options.streams)]
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


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    asks = make_asks(unmask.load(options.model, device="cpu"), options.streams, seed=0)
    process, url = start(options)
    try:
        rounds, resident, files = [], [], []
        for _ in range(options.rounds):
            heard, seconds = asyncio.run(storm(url, asks))
            wrong = sum(one.text != ask.text for one, ask in zip(heard, asks, strict=True))
            rounds.append(
                {
                    "seconds": seconds,
                    "tokens_per_second": sum(one.tokens for one in heard) / seconds,
                    "wrong_texts": wrong,
                    "p50_seconds": percentile([one.seconds for one in heard], 0.5),
                    "p95_seconds": percentile([one.seconds for one in heard], 0.95),
                    "p95_first_text": percentile([one.first or one.seconds for one in heard], 0.95),
                }
            )
            resident.append(memory(process.pid))
            time.sleep(0.5)  # connections are closed on both sides
            files.append(len(os.listdir(f"/proc/{process.pid}/fd")))
            print(json.dumps(rounds[-1]), f"{resident[-1]:.0f} MB, {files[-1]} open files", flush=True)
        page = httpx.get(f"{url}/metrics").text
    finally:
        process.terminate()
        process.wait(30)
    result = {"streams": options.streams, "rounds": rounds, "resident_mb": resident, "open_files": files}
    result["idle_at_the_end"] = "unmask_queue_requests 0.0" in page
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(one["wrong_texts"] for one in rounds))


if __name__ == "__main__":
    main()
