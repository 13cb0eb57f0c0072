"""`unmask serve` as a process: how soon it answers, and what signals do to it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.checkpoints import write_checkpoint
from tests.serving.conftest import wait_until
from unmask.cli.app import app

SOON = 30  # seconds of computing from the start to the end of all answers
START = 120  # seconds; a machine that does other things at the same time may need many more than its own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("serve") / "llada", "llada_tiny"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A server of its own."""

    def __init__(self, folder: str, *options: str, log: Path, **env: str) -> None:
        self.port = free_port()
        self.log = log
        command = [sys.executable, "-m", "unmask", "serve", folder, "--device", "cpu", "--name", "tiny"]
        with log.open("w") as lines:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), "--threads", "1", *options],
                stderr=lines,
                env={**os.environ, **env},
            )

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code == 200
        except httpx.ConnectError:
            return False

    def complete(self, tokens: int = 4, **headers: str) -> httpx.Response:
        body = {"prompt": "the", "max_tokens": tokens, "sampler": "threshold"}
        body["sampler_fields"] = {"min_confidence": 1}  # type: ignore[assignment]
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        return httpx.post(url, json=body, headers=headers, timeout=60)

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def process(folder: str, *options: str, log: Path, **env: str) -> Iterator[Process]:
    started = Process(folder, *options, log=log, **env)
    try:
        wait_until(started.ready, START)
        yield started
    finally:
        started.process.kill()
        started.process.wait(10)


def loaded(server: Process, pool: ThreadPoolExecutor, tokens: int) -> list[Future[httpx.Response]]:
    """Six requests, all of them there: two run and four wait."""
    sent = [pool.submit(server.complete, tokens) for _ in range(6)]

    def all_there() -> bool:
        gauges = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text
        return "unmask_running_requests 2.0" in gauges and "unmask_queue_requests 4.0" in gauges

    wait_until(all_there)
    return sent


def test_it_answers_soon_and_a_signal_lets_it_finish_what_it_has(folder: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (
        process(folder, "--max-batch", "2", log=tmp_path / "log") as server,
        ThreadPoolExecutor(6) as pool,
    ):
        assert server.complete().status_code == 200
        sent = loaded(server, pool, tokens=80)
        server.process.send_signal(signal.SIGTERM)
        answers = [future.result() for future in sent]
        assert [answer.status_code for answer in answers] == [200] * 6
        assert all(answer.json()["unmask"]["steps"] == 80 for answer in answers)
        assert server.process.wait(60) == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SOON
    requests = [line for line in server.lines() if line["event"] == "request"]
    assert len(requests) == 7
    assert {"request_id", "status", "seconds", "steps", "prompt_tokens"} <= set(requests[0])


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(folder: str, tmp_path: Path) -> None:
    with (
        process(folder, "--max-batch", "2", log=tmp_path / "log") as server,
        ThreadPoolExecutor(6) as pool,
    ):
        sent = loaded(server, pool, tokens=1024)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 5
        for future in sent:
            ended = future.exception() or future.result()
            assert isinstance(ended, Exception) or ended.status_code == 503, ended.text


@pytest.mark.slow
def test_the_key_may_come_from_the_environment(folder: str, tmp_path: Path) -> None:
    with process(folder, log=tmp_path / "log", UNMASK_API_KEY="secret") as server:
        assert server.complete().status_code == 401
        assert server.complete(authorization="Bearer secret").status_code == 200
    assert "secret" not in server.log.read_text()


def test_wrong_settings_are_refused_before_the_model_is_loaded() -> None:
    for options, sentence in [
        (["--max-batch", "0"], "--max-batch must be a whole number >= 1, got 0"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be a whole number >= 1, got 0"),
        (["--max-streams", "0"], "--max-streams must be a whole number >= 1, got 0"),
        (["--sampler", "lesss"], "did you mean 'less'?"),
        (["--sampler", "wino"], "'wino'; choose another one"),
        (["--cors", "example"], "--cors must be an origin"),
        (["--deadline", "0"], "--deadline must be > 0, got 0"),
        (["--api-key", ""], "--api-key must not be empty; leave it out to let everybody in"),
        (["-m", "mini-llada"], "the model must be named once, got 'no/such/folder' and --model 'mini-llada'"),
        (["--host", "no address"], "--host must be an address of this machine, got 'no address'"),
        (["--host", "192.0.2.1"], "--host must be an address of this machine, got '192.0.2.1'"),
    ]:
        done = CliRunner().invoke(app, ["serve", "no/such/folder", *options])
        assert done.exit_code == 2
        assert sentence in done.stderr


def test_an_empty_key_in_the_environment_is_refused() -> None:
    done = CliRunner().invoke(app, ["serve", "no/such/folder"], env={"UNMASK_API_KEY": ""})
    assert done.exit_code == 2
    assert "UNMASK_API_KEY must not be empty; unset it to let everybody in" in done.stderr


def test_a_port_in_use_is_refused_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["serve", "no/such/folder", "--port", str(port)])
    assert done.exit_code == 2
    assert f"--port must be free on 127.0.0.1, got {port}" in done.stderr


def test_the_model_is_an_argument_or_the_option_of_the_other_commands() -> None:
    for named in (["no/such/folder"], ["-m", "no/such/folder"], ["--model", "no/such/folder"]):
        done = CliRunner().invoke(app, ["serve", *named, "--port", "0"])
        assert done.exit_code == 2
        assert "got 'no/such/folder'" in done.stderr


def test_without_its_packages_it_says_how_to_get_them(folder: str) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['unmask', 'serve', 'x']; "
        "from unmask.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "serving needs uvicorn; pip install 'unmask[serve]'" in done.stderr
