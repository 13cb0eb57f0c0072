"""Time from the command `unmask serve` to its first answer.

python benchmarks/serving_start.py [MODEL] [--times 3] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import torch

PATIENCE = 120.0  # seconds
CHAT = {"messages": [{"role": "user", "content": "Solve the equation: 3x + 5 = 20."}]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_answer(model: str) -> dict[str, float]:
    """Return the seconds until the server listens, and until it has answered a chat."""
    url, began = f"http://127.0.0.1:{free_port()}", time.perf_counter()
    command = [sys.executable, "-m", "unmask", "serve", model, "--port", url.rpartition(":")[2]]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                httpx.get(f"{url}/readyz").raise_for_status()
                break
            except httpx.ConnectError:
                if process.poll() is not None or time.perf_counter() - began > PATIENCE:
                    raise
                time.sleep(0.02)
        ready = time.perf_counter() - began
        httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=PATIENCE).raise_for_status()
        return {"ready_seconds": ready, "answer_seconds": time.perf_counter() - began}
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="mini-llada")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {
        "command": " ".join(["python", "benchmarks/serving_start.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "cpus": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],  # the machine may be shared
        "torch": torch.__version__,
        "runs": [first_answer(options.model) for _ in range(options.times)],
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
