"""A really running server before a tiny checkpoint, and clients that call it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from tests.text.conftest import tiny
from unmask import GenerationConfig, Threshold
from unmask.models.trunk import Trunk
from unmask.serving import Engine, Limits
from unmask.serving.metrics import Metrics
from unmask.serving.server import make_server
from unmask.serving.settings import Settings
from unmask.serving.sockets import bound

CONFIG = GenerationConfig(max_new_tokens=16)


class Slow:
    """A model that takes its time, so that a test can act while a request runs."""

    def __init__(self, model: Any, seconds: float = 0.03) -> None:
        self.model = model
        self.seconds = seconds
        self.info = model.info
        self.tokenizer = model.tokenizer

    def __call__(self, *inputs: Any) -> Any:
        time.sleep(self.seconds)
        return self.model(*inputs)


class Gated:
    """A model whose forwards wait until the test lets them pass."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.info = model.info
        self.tokenizer = model.tokenizer
        self._passes = threading.Semaphore(0)
        self._open = False

    def __call__(self, *inputs: Any) -> Any:
        if not self._open:
            assert self._passes.acquire(timeout=60), "the gate stayed closed"
        return self.model(*inputs)

    def let(self, forwards: int) -> None:
        """Let so many forwards pass."""
        self._passes.release(forwards)

    def open(self) -> None:
        """Let all forwards pass from now on."""
        self._open = True
        self._passes.release()


@dataclass(frozen=True)
class Running:
    """A server that listens."""

    url: str
    engine: Engine
    loop: asyncio.AbstractEventLoop

    def holds(self) -> dict[str, int]:
        """What a request may leave behind: rows, tasks of the server, open files of the process."""
        return {
            "rows": self.engine.running + self.engine.waiting,
            "tasks": len(asyncio.all_tasks(self.loop)),
            "files": len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0,
        }

    def client(self, **settings: Any) -> openai.OpenAI:
        given = {"api_key": "none", "max_retries": 0, "timeout": 60, **settings}
        return openai.OpenAI(base_url=f"{self.url}/v1", **given)

    def post(self, path: str, body: Any = None, **settings: Any) -> httpx.Response:
        given = {"timeout": 60, **({} if body is None else {"json": body}), **settings}
        return httpx.post(self.url + path, **given)

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **settings)


@contextmanager
def listening(model: Any, *, limits: Limits | None = None, **settings: Any) -> Iterator[Running]:
    """A server on a free port, in a thread of this process."""
    given = {"model_name": "tiny", "config": CONFIG, **settings}
    engine = Engine(model, limits or Limits(), Metrics())
    server = make_server(engine, Settings(**given))
    with bound("127.0.0.1", 0) as sockets:
        port = sockets[0].getsockname()[1]
        thread = threading.Thread(target=server.run, args=[sockets])
        engine.start()
        thread.start()
        try:
            wait_until(lambda: server.started)
            [listener] = server.servers
            yield Running(f"http://127.0.0.1:{port}", engine, listener.get_loop())
        finally:
            server.should_exit = True
            thread.join(10)
            engine.close(now=True)
    assert not thread.is_alive()
    assert (engine.running, engine.waiting) == (0, 0)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that must come true, however busy the machine is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def model() -> Trunk:
    return tiny("llada_tiny")


@pytest.fixture(scope="module")
def server(model: Trunk) -> Iterator[Running]:
    """A server that answers at once."""
    with listening(model, limits=Limits(max_new_tokens=64, max_prompt_tokens=200)) as running:
        yield running


@pytest.fixture(scope="module")
def slow_server(model: Trunk) -> Iterator[Running]:
    """A server whose every step takes some time; it commits one token per step."""
    one_by_one = Threshold(min_confidence=1)
    with listening(Slow(model), sampler=one_by_one, sampler_name="threshold", max_streams=3) as running:
        yield running
