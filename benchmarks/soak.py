"""Run honest and hostile clients against a real server for a long time, and check what it keeps.

python benchmarks/soak.py MODEL [--seconds 600] [--warm-up 60] [--out FILE.json]

After the warm-up and at the end, all clients stop, and the server's descriptors, threads, rows and memory are
read. The exit code is 1 if one of them grew by more than 10 %, if a request got a 5xx, if the same honest
request got another text, or if the answer about its health was ever late.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

HONEST, HOSTILE = 3, 4  # clients
MOST_GROWTH = 0.1
LATEST_HEALTH = 2.0  # seconds
SETTLE_SECONDS = 20.0
SAMPLERS = ("less", "base", "threshold", "klass", "prophet", "entropy-bound", "less-released", "random")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "red", "dog", "near", "old", "trees")
JSON = {"content-type": "application/json"}
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
ABSURD: tuple[Any, ...] = (0, -1, 10**7, 10**18, 1e308, "x", "", None, [], [0] * 5000, {}, {"x": 1}, True)
LARGE = (
    (COMPLETE, json.dumps({"prompt": "hello " * 160_000}).encode()),
    (COMPLETE, json.dumps({"prompt": [1, "a"] * 100_000}).encode()),
    (COMPLETE, json.dumps({"prompt": "a", "stop": [1] * 300_000}).encode()),
    (CHAT, json.dumps({"messages": [{"role": "user", "content": "x<|endoftext|>" * 50_000}]}).encode()),
    (COMPLETE, b"[" * 900_000),
    (COMPLETE, b" " * 2_000_000),
)
NAMES = ("max_tokens", "steps", "temperature", "top_k", "guidance", "stop", "seed", "block_length", "cache")
FIELDS = ("history", "persistence", "top_k", "early", "answer_start", "max_jsd", "demoted_ids", "base")


@dataclass
class Tally:
    """What the clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)  # body of an honest request -> its text
    faults: list[str] = field(default_factory=list)
    health: float = 0.0  # the longest wait, in seconds

    def answered(self, kind: str, answer: httpx.Response) -> None:
        self.statuses[f"{kind} {answer.status_code}"] += 1
        if answer.status_code >= 500:
            self.faults.append(f"{kind}: {answer.status_code} {answer.text[:200]}")


@dataclass(frozen=True)
class Held:
    """What the server holds while it is idle."""

    descriptors: int
    threads: int
    rows: int
    memory: float  # MB

    @staticmethod
    def of(process: int, url: str) -> Held:
        status = Path(f"/proc/{process}/status").read_text()
        found = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
        page = httpx.get(f"{url}/metrics", timeout=30).text
        rows = re.findall(r"^unmask_(?:queue|running)_requests (\S+)", page, re.MULTILINE)
        descriptors = len(os.listdir(f"/proc/{process}/fd"))
        return Held(
            descriptors, int(found["Threads"]), int(sum(map(float, rows))), int(found["VmRSS"]) / 1024
        )


class Client(threading.Thread):
    """Acts again and again until it is told to stop."""

    def __init__(self, act: Callable[[random.Random], None], seed: int, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._act, self._dice, self._over = act, random.Random(seed), over

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError, httpx.TransportError):  # a server may hang up on us
                self._act(self._dice)


class Soak:
    """One server and its clients."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.tally = Tally()
        self._port = int(url.rpartition(":")[2])

    def run(self, seconds: float, seed: int) -> None:
        """Let all clients act for some time, and wait for them."""
        over = threading.Event()
        acts = [self.honest] * HONEST + [self.hostile] * HOSTILE + [self.health]
        clients = [Client(act, seed + number, over) for number, act in enumerate(acts)]
        for client in clients:
            client.start()
        time.sleep(seconds)
        over.set()
        for client in clients:
            client.join()

    def post(self, kind: str, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = httpx.post(self.url + path, content=content, headers={**JSON, **headers}, timeout=120)
        self.tally.answered(kind, answer)
        return answer

    def health(self, dice: random.Random) -> None:
        began = time.monotonic()
        httpx.get(f"{self.url}/healthz", timeout=60)
        self.tally.health = max(self.tally.health, time.monotonic() - began)
        time.sleep(0.05)

    def honest(self, dice: random.Random) -> None:
        """Ask for a text. The same body must always get the same text."""
        number = dice.randrange(40)
        own = random.Random(number)
        words = " ".join(own.choice(WORDS) for _ in range(own.randrange(1, 20)))
        body = {
            "sampler": SAMPLERS[number % len(SAMPLERS)],
            "seed": number,
            "temperature": own.choice((0, 0.7)),
        }
        chat = number % 4 == 0
        if chat:
            body |= {"messages": [{"role": "user", "content": words}], "max_tokens": 16}
        elif number % 4 == 1:
            body |= {"prompt": f"{words} [[gap 2-8]] the mat"}
        else:
            body |= {"prompt": words, "max_tokens": own.choice((8, 16, 24))}
        answer = self.post("honest", CHAT if chat else COMPLETE, body)
        if answer.status_code == 200:
            choice = answer.json()["choices"][0]
            text = choice["message"]["content"] if chat else choice["text"]
            if self.tally.texts.setdefault(json.dumps(body), text) != text:
                self.tally.faults.append(f"another text: {body}")

    def hostile(self, dice: random.Random) -> None:
        attacks = (
            self.absurd,
            self.large,
            self.connections,
            self.foreign,
            self.hang_up,
            self.unread,
            self.noise,
        )
        dice.choice(attacks)(dice)

    def absurd(self, dice: random.Random) -> None:
        body: dict[str, Any] = {"prompt": "a", "max_tokens": 4, "sampler": dice.choice(SAMPLERS)}
        if dice.random() < 0.5:
            body[dice.choice(NAMES)] = dice.choice(ABSURD)
        else:
            body["sampler_fields"] = {dice.choice(FIELDS): dice.choice(ABSURD)}
        self.post("absurd", COMPLETE, body)

    def large(self, dice: random.Random) -> None:
        path, body = dice.choice(LARGE)
        self.post("large", path, body)

    def connections(self, dice: random.Random) -> None:
        """Open many connections and never finish a header."""
        sockets = [socket.create_connection(("127.0.0.1", self._port), timeout=10) for _ in range(150)]
        try:
            for each in sockets:
                each.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: ")
            time.sleep(dice.random())
        finally:
            for each in sockets:
                each.close()

    def foreign(self, dice: random.Random) -> None:
        headers = (
            {"host": "evil.example"},
            {"origin": "https://evil.example"},
            {"content-type": "text/plain"},
        )
        self.post("foreign", COMPLETE, {"prompt": "a"}, **dice.choice(headers))

    def hang_up(self, dice: random.Random) -> None:
        body = {"prompt": "the", "max_tokens": 64, "stream": True, "drafts": True, "draft_candidates": 8}
        with httpx.stream("POST", self.url + COMPLETE, json=body, timeout=60) as stream:
            next(stream.iter_bytes(), None)

    def unread(self, dice: random.Random) -> None:
        """Ask for a long stream, and do not read it."""
        body = json.dumps({"prompt": "a", "max_tokens": 64, "stream": True, "drafts": True})
        head = f"POST {COMPLETE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            time.sleep(2 * dice.random())

    def noise(self, dice: random.Random) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
            connection.sendall(dice.randbytes(dice.randrange(1, 5000)))
            connection.settimeout(0.2)
            connection.recv(1000)


def start(model: str, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server and wait until it accepts requests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "unmask", "serve", model, "--device", "cpu", "--threads", "1"]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=log.open("wb"))
    url = f"http://127.0.0.1:{port}"
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return process, url
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.2)


def settled(process: int, url: str) -> Held:
    """Return what the server holds once it has no rows and its idle connections are closed."""
    end = time.monotonic() + SETTLE_SECONDS
    while Held.of(process, url).rows and time.monotonic() < end:
        time.sleep(0.5)
    time.sleep(7)  # idle connections are closed after 5 seconds
    return Held.of(process, url)


def grown(before: Held, after: Held) -> dict[str, float]:
    """Return the quantities that grew by more than is allowed, with their factors."""
    pairs = {name: (value, asdict(after)[name]) for name, value in asdict(before).items()}
    return {name: new / max(old, 1) for name, (old, new) in pairs.items() if new > old * (1 + MOST_GROWTH)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=600.0, help="after the warm-up")
    parser.add_argument("--warm-up", type=float, default=60.0)
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="where the server logs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    process, url = start(options.model, options.log)
    soak = Soak(url)
    try:
        soak.run(options.warm_up, seed=0)
        before = settled(process.pid, url)
        soak.run(options.seconds, seed=1000)
        after = settled(process.pid, url)
    finally:
        process.terminate()
        process.wait(60)
    tally = soak.tally
    result = {
        "command": " ".join(["python", "benchmarks/soak.py", *sys.argv[1:]]),
        "cpus": os.cpu_count(),
        "load_average": [round(value, 1) for value in os.getloadavg()],  # the machine may be shared
        "after_warm_up": asdict(before),
        "at_the_end": asdict(after),
        "grown": grown(before, after),
        "answers": dict(sorted(tally.statuses.items())),
        "honest_texts": len(tally.texts),
        "faults": tally.faults[:20],
        "longest_wait_for_health": tally.health,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["grown"] or tally.faults or tally.health > LATEST_HEALTH))


if __name__ == "__main__":
    main()
