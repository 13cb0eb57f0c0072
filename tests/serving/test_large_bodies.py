"""Large bodies: refused quickly, without holding up others and without keeping their memory."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.conftest import Running, listening
from unmask import load
from unmask.serving import Limits

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
LATEST = 1.5  # seconds; client and server share this process, and perhaps a busy machine
JSON = {"content-type": "application/json"}
LARGE: dict[str, Any] = {
    "words": {"prompt": "hello " * 170_000},
    "one word": {"prompt": "a" * 1_000_000},
    "special": {"prompt": "<|endoftext|>" * 70_000},
    "ids": {"prompt": [1] * 300_000},
    "mixed": {"prompt": [1, "a"] * 120_000},
    "stop": {"prompt": "a", "stop": [1] * 300_000},
    "gaps": {"prompt": "[[gap 1]]" * 100_000},
    "names": {"prompt": "a", **{f"x{i}": 1 for i in range(70_000)}},
}


@pytest.fixture(scope="module")
def mini_server() -> Iterator[Running]:
    with listening(load("mini-llada", device="cpu"), limits=Limits(max_new_tokens=32)) as running:
        yield running


@contextmanager
def watched(server: Running) -> Iterator[Callable[[], float]]:
    """Ask for the health all the time; the function returns the longest wait so far."""
    waits, over = [0.0], threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not over.is_set():
                began = time.monotonic()
                client.get(f"{server.url}/healthz")
                waits.append(time.monotonic() - began)
                time.sleep(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: max(waits)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", LARGE)
def test_a_large_body_is_refused_soon_and_delays_nobody(mini_server: Running, name: str) -> None:
    content = json.dumps(LARGE[name]).encode()
    with watched(mini_server) as longest_wait:
        began = time.monotonic()
        refused = mini_server.post(COMPLETE, content=content, headers=JSON, timeout=60)
        seconds = time.monotonic() - began
    assert refused.status_code == 400, refused.text
    assert seconds < 5
    assert longest_wait() < LATEST
    assert len(refused.text) < 2000


def test_a_long_prompt_that_fits_is_encoded_beside_the_loop(mini_server: Running) -> None:
    with watched(mini_server) as longest_wait:
        refused = mini_server.post(COMPLETE, {"prompt": "a b " * 30_000}, timeout=60)
    assert "tokens" in refused.json()["error"]["message"]
    assert longest_wait() < LATEST


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_refused_bodies_returns(mini_server: Running) -> None:
    def resident() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    bodies = [json.dumps(body).encode() for body in LARGE.values()]
    for body in bodies:  # what is made once is made now
        mini_server.post(COMPLETE, content=body, headers=JSON, timeout=60)
    time.sleep(1)
    before = resident()
    for body in bodies * 2:
        mini_server.post(COMPLETE, content=body, headers=JSON, timeout=60)
    time.sleep(1.5)
    assert resident() < before + 60
