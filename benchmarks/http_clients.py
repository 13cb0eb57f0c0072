"""Clients that reach an engine over HTTP, like the clients of `unmask serve`.

The server runs in the engine's process. The clients run in another process, so that they take no time from
the engine. That process runs this file, reads a JSON object from its standard input, and prints a line about
every answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import httpx

import unmask
from unmask.serving import Engine
from unmask.serving.server import make_server
from unmask.serving.settings import Settings
from unmask.serving.sockets import bound

PATH = "/v1/completions"
BASE = unmask.make_sampler("base")


@dataclass
class Answer:
    """The times at which a request was sent, its first text was seen and its answer was complete."""

    sent: float
    first: float
    answered: float
    steps: tuple[float, ...] = ()  # unknown over HTTP, where a step may show no text


@contextmanager
def listening(engine: Engine, config: unmask.GenerationConfig) -> Iterator[str]:
    """Serve an engine on a free port, and yield its URL."""
    settings = Settings(sampler=BASE, sampler_name="base", config=config)
    server = make_server(engine, settings)
    with bound("127.0.0.1", 0) as sockets:
        thread = threading.Thread(target=server.run, args=[sockets], daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class HttpClients:
    """Clients that send one request after another until they are told to stop."""

    engine: Engine
    prompts: Iterator[list[int]]
    config: unmask.GenerationConfig
    count: int
    stream: bool = False
    answers: list[Answer] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Let every client send a first request, with a random number of steps to spread the clients out."""
        url = self._stack.enter_context(listening(self.engine, self.config))
        bodies = [{"prompt": prompt, "stream": self.stream} for prompt in islice(self.prompts, self.count)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.http_clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(self._process)
        self._stack.callback(self._process.kill)
        assert self._process.stdin is not None
        json.dump({"url": url, "bodies": bodies, "steps": self.config.steps}, self._process.stdin)
        self._process.stdin.close()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.answers.append(Answer(**json.loads(line)))

    def wait(self, answers: int) -> None:
        """Wait until the clients have this many answers in total. Raise if they have ended."""
        while len(self.answers) < answers:
            if self._process.poll() is not None:
                raise RuntimeError(f"the clients ended with {self._process.returncode}")
            time.sleep(0.002)

    def stop(self) -> None:
        """End the clients and the server."""
        self._stack.close()


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    """Send one request, and read its answer."""
    sent = time.perf_counter()
    first = 0.0
    async with client.stream("POST", PATH, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not first and (not body["stream"] or _has_text(line)):
                first = time.perf_counter()
    answered = time.perf_counter()
    return Answer(sent, first or answered, answered)


def _has_text(line: str) -> bool:
    """Whether a line of a stream carries text."""
    if not line.startswith("data: {"):
        return False
    return any(choice["text"] for choice in json.loads(line.removeprefix("data: "))["choices"])


async def keep_asking(client: httpx.AsyncClient, body: dict[str, Any], first_steps: int) -> None:
    """Send one request after another, without end."""
    await ask(client, {**body, "steps": first_steps})
    while True:
        print(json.dumps(asdict(await ask(client, body))), flush=True)


async def main() -> None:
    told, dice = json.load(sys.stdin), random.Random(0)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=told["url"], timeout=600, limits=limits) as client:
        await asyncio.gather(
            *(keep_asking(client, body, dice.randint(1, told["steps"])) for body in told["bodies"])
        )


if __name__ == "__main__":
    asyncio.run(main())
