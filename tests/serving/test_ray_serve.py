"""The server on a Ray cluster of two replicas on this machine, which takes a while to start, hence slow."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from tests.checkpoints import write_checkpoint
from tests.processes import descendants
from tests.raises import raises_field
from tests.serving.conftest import wait_until
from tests.serving.test_process import free_port
from unmask import GenerationConfig, Threshold, generate, load
from unmask.cli.app import app
from unmask.serving.metrics import Metrics
from unmask.serving.monitor import Tick
from unmask.serving.ray_serve import Fleet, Page

on_ray = pytest.mark.slow

START = 90  # seconds
PATIENT = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30"}  # a machine that does other things may be slow
ONE_BY_ONE = {"sampler": "threshold", "sampler_fields": {"min_confidence": 1}}
LONG = {"prompt": "the", "max_tokens": 300, "stream": True, **ONE_BY_ONE}


@dataclass(frozen=True)
class Cluster:
    """`unmask serve --ray local` in a process of its own."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=20, **settings)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/readyz").status_code == 200 and len(self.running()) == 2
        except httpx.TransportError:
            return False

    def gauge(self, pattern: str) -> dict[str, float]:
        """A figure of every replica."""
        page = self.get("/metrics").text
        return {name: float(value) for name, value in re.findall(pattern + r" ([\d.e+]+)", page)}

    def running(self) -> dict[str, float]:
        return self.gauge(r'unmask_running_requests\{replica="(\w+)"\}')

    def cancelled(self) -> float:
        return sum(self.gauge(r'unmask_jobs_total\{outcome="cancelled",replica="(\w+)"\}').values())

    def replicas(self) -> set[int]:
        return descendants(self.process.pid, b"ray::ServeReplica:unmask")

    def connections(self) -> int:
        """Clients that the proxy has not let go of."""
        port = f":{int(self.url.rpartition(':')[2]):04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(local.endswith(port) and state in ("01", "08") for _, local, _, state, *_ in rows)

    def idle(self) -> bool:
        return sum(self.running().values()) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("ray") / "llada", "llada_tiny"))


@pytest.fixture(scope="module")
def cluster(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("ray.serve")
    if sys.platform != "linux":
        pytest.skip("finds processes in /proc")
    port, log = free_port(), tmp_path_factory.mktemp("ray") / "log"
    command = [sys.executable, "-m", "unmask", "serve", folder, "--device", "cpu", "--name", "tiny"]
    command += ["--ray", "local", "--replicas", "2", "--port", str(port)]
    with log.open("w") as lines:
        process = subprocess.Popen(command, stdout=lines, stderr=lines, env={**os.environ, **PATIENT})
    started = Cluster(process, f"http://127.0.0.1:{port}", log)
    try:
        wait_until(started.ready, START)
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def hear(cluster: Cluster, body: dict[str, Any]) -> tuple[str, str]:
    """The text of a stream, and how it ended: done, with an error of ours, or cut."""
    text, end = "", "cut"
    try:
        with httpx.stream("POST", cluster.url + "/v1/completions", json=body, timeout=60) as stream:
            for line in stream.iter_lines():
                if line == "data: [DONE]":
                    end = "done"
                elif line.startswith("data: "):
                    data = json.loads(line[6:])
                    text += data["choices"][0]["text"] if "choices" in data else ""
    except httpx.RemoteProtocolError:
        end = "cut"
    return text, end


def offline(folder: str, length: int) -> str:
    sampler = Threshold(min_confidence=1)
    return generate(load(folder), ["the"], sampler, GenerationConfig(max_new_tokens=length))[0].text


@on_ray
def test_a_replica_answers_and_streams_as_generate_does(cluster: Cluster, folder: str) -> None:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.completions.create(model="tiny", prompt="the", max_tokens=12, extra_body=ONE_BY_ONE)
        with pytest.raises(openai.BadRequestError, match=r"steps .* got -1"):
            client.completions.create(model="tiny", prompt="the", extra_body={"steps": -1})
    assert whole.choices[0].text == offline(folder, 12)
    assert hear(cluster, {**LONG, "max_tokens": 12}) == (offline(folder, 12), "done")
    assert cluster.get("/healthz", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"


@on_ray
@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up_frees_its_row(cluster: Cluster, streamed: bool) -> None:
    before = cluster.cancelled()
    body = json.dumps({**LONG, "max_tokens": 1000, "stream": streamed})
    host, port = cluster.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())
        wait_until(lambda: sum(cluster.running().values()) == 1)
    wait_until(cluster.idle)
    assert cluster.cancelled() == before + 1


@on_ray
def test_a_killed_replica_ends_its_own_streams_alone_and_comes_back(cluster: Cluster, folder: str) -> None:
    before = cluster.replicas()
    with ThreadPoolExecutor(6) as pool:
        sent = [pool.submit(hear, cluster, LONG) for _ in range(6)]
        wait_until(lambda: sum(cluster.running().values()) == 6)
        running = cluster.running()
        os.kill(min(before), signal.SIGKILL)
        heard = [future.result() for future in sent]
    wait_until(cluster.ready, START)
    [survivor] = set(cluster.running()) & set(running)
    ends = [end for _, end in heard]
    assert ends.count("done") == running[survivor]
    assert ends.count("cut") == 6 - running[survivor]
    assert {text for text, end in heard if end == "done"} == {offline(folder, 300)}
    assert len(cluster.replicas()) == 2
    assert min(before) not in cluster.replicas()
    for _ in range(8):  # on both replicas
        assert hear(cluster, {**LONG, "max_tokens": 4})[1] == "done"
    wait_until(lambda: cluster.idle() and cluster.connections() == 0)


@on_ray
def test_a_signal_lets_requests_finish_and_leaves_no_process(cluster: Cluster, folder: str) -> None:
    """The last one: it ends the cluster."""
    everyone = descendants(cluster.process.pid)
    assert len(everyone) > len(cluster.replicas())
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(hear, cluster, LONG) for _ in range(4)]
        wait_until(lambda: sum(cluster.running().values()) == 4)
        cluster.process.send_signal(signal.SIGTERM)
        assert [future.result() for future in sent] == [(offline(folder, 300), "done")] * 4
    assert cluster.process.wait(60) == 0
    wait_until(lambda: not any(Path(f"/proc/{number}").exists() for number in everyone), 30)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--replicas", "2"], "--replicas needs a cluster; add --ray local or --ray ADDRESS"),
        (["--ray", "127.0.0.1:9"], "there is no Ray cluster at '127.0.0.1:9'"),
        (["--ray", "local", "--replicas", "0"], "replicas must be a whole number >= 1, got 0"),
        (["--ray", "local", "--replicas", "3", "--max-replicas", "2"], "max_replicas must be a whole number"),
        (["--ray", "local", "--gpus-per-replica", "2"], "gpus must be in [0, 1]"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(options: list[str], sentence: str) -> None:
    pytest.importorskip("ray.serve")
    done = CliRunner().invoke(app, ["serve", "no/such/folder", *options])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_replicas_take_a_gpu_each_where_there_is_one_and_must_fit() -> None:
    assert Fleet(threads=2).share({"CPU": 4}) == {"num_cpus": 2, "num_gpus": 0}
    assert Fleet(replicas=2).share({"CPU": 4, "GPU": 2}) == {"num_cpus": 1, "num_gpus": 1}
    assert Fleet(replicas=4, gpus=0.5).share({"CPU": 4, "GPU": 2}) == {"num_cpus": 1, "num_gpus": 0.5}
    with raises_field("replicas", 3, "2 GPUs"):
        Fleet(replicas=3).share({"CPU": 4, "GPU": 2})


def test_the_figures_of_replicas_stand_side_by_side() -> None:
    counted = []
    for name, steps in (("one", 3), ("two", 5)):
        metrics = Metrics()
        metrics.stepped(
            Tick(rows=steps, seconds=0.1, evaluations=1, forwards=steps, accepted=0, forced=0, leftovers=0)
        )
        counted.append((name, list(metrics.registry.collect())))
    page = generate_latest(Page(counted)).decode()
    assert 'unmask_steps_total{replica="one"} 3.0' in page
    assert 'unmask_steps_total{replica="two"} 5.0' in page
    assert page.count("# TYPE unmask_steps_total counter") == 1
