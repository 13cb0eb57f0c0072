"""Clients that keep connections open: they are ended in time, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.serving.conftest import Gated, Running, listening, wait_until
from tests.serving.test_process import folder as folder
from tests.serving.test_process import process
from unmask import Threshold
from unmask.models.trunk import Trunk
from unmask.serving.sockets import bound

COMPLETE = "/v1/completions"
REQUEST = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it; reads what is there."""
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def trickle(connection: socket.socket, seconds: float = 60.0) -> bool:
    """Send a header letter by letter; return whether the server hangs up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            connection.sendall(b"x")
        except ConnectionError:
            return True
        if is_closed(connection):
            return True
        connection.setblocking(True)
        time.sleep(0.05)
    return False


def test_a_client_that_never_ends_its_headers_is_hung_up_on(model: Trunk) -> None:
    with listening(model, header_seconds=0.4) as server:
        with connect(server) as silent:
            wait_until(lambda: is_closed(silent))
        with connect(server) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
            assert trickle(slow)
        with connect(server) as second:  # the second request of a connection
            second.sendall(REQUEST)
            assert b"200 OK" in second.recv(1 << 16)
            second.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
            assert trickle(second)


def test_a_body_that_nobody_reads_does_not_keep_a_connection(model: Trunk) -> None:
    with listening(model, header_seconds=0.4) as server, connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n")
        assert trickle(connection)


def test_a_request_takes_longer_than_headers_may(model: Trunk) -> None:
    gated = Gated(model)
    with listening(gated, header_seconds=0.2) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, COMPLETE, {"prompt": "a", "max_tokens": 4})
        wait_until(lambda: server.engine.running == 1)
        time.sleep(0.6)
        gated.open()
        assert answer.result().status_code == 200


@contextmanager
def half_open(server: Running, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(stack.enter_context(connect(server)))
            sockets[-1].sendall(b"GET /")
        yield sockets


def test_too_many_connections_cost_the_oldest_that_waits(
    model: Trunk, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(model, max_connections=8) as server:
        with caplog.at_level(logging.WARNING), half_open(server, 40) as sockets:
            assert server.get("/healthz").status_code == 200
            assert server.post(COMPLETE, {"prompt": "a", "max_tokens": 2}).status_code == 200
            closed = [is_closed(connection) for connection in sockets]
        assert all(closed[:32])
        assert closed.count(False) <= 8
        assert server.get("/healthz").status_code == 200
    lines = [record for record in caplog.records if record.name == "unmask.serving.connections"]
    assert len(lines) == 1


def test_connections_with_a_request_are_kept_and_the_health_is_told(model: Trunk) -> None:
    gated = Gated(model)
    with listening(gated, max_connections=4) as server, ThreadPoolExecutor(4) as pool:
        body = {"prompt": "a", "max_tokens": 4}
        answers = [pool.submit(server.post, COMPLETE, body) for _ in range(4)]
        wait_until(lambda: server.engine.running + server.engine.waiting == 4)
        assert server.get("/healthz").status_code == 200
        refused = server.post(COMPLETE, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        with half_open(server, 40):
            assert server.get("/readyz").status_code == 200
        gated.open()
        assert [answer.result().status_code for answer in answers] == [200] * 4
        wait_until(lambda: server.post(COMPLETE, body).status_code == 200)


def test_a_client_that_does_not_read_its_stream_frees_its_row(model: Trunk) -> None:
    body = json.dumps(
        {"prompt": "a", "max_tokens": 256, "stream": True, "drafts": True, "draft_candidates": 16}
    )
    head = f"POST {COMPLETE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    one_by_one = Threshold(min_confidence=1)
    with listening(model, stall_seconds=0.5, sampler=one_by_one) as server, connect(server) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        before = server.holds()["tasks"]
        wait_until(lambda: server.engine.running == 1)
        wait_until(lambda: server.engine.running == 0)
        wait_until(lambda: server.holds()["tasks"] <= before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_without_descriptors_a_client_is_turned_away_and_told_of_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    troubles: list[OSError] = []
    with bound("127.0.0.1", 0) as [listener], ExitStack() as stack:
        listener.listen()
        listener.setblocking(False)
        listener.out_of_descriptors = troubles.append
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(2)]
        highest = max(map(int, os.listdir("/proc/self/fd")))
        taken = [os.dup(0) for _ in range(highest)]  # fill the holes below the limit
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
            for client in clients:
                with pytest.raises(BlockingIOError):
                    listener.accept()
                assert is_closed(client)
            with pytest.raises(BlockingIOError):  # nobody is left
                listener.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for number in taken:
                os.close(number)
        clients.append(stack.enter_context(socket.create_connection(listener.getsockname())))
        listener.accept()[0].close()
    assert [error.errno for error in troubles] in ([errno.EMFILE] * 2, [errno.EMFILE] * 3)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_with_few_descriptors_answers_under_a_flood(folder: str, tmp_path: Path) -> None:
    with process(folder, log=tmp_path / "log") as server, ExitStack() as stack:
        number = server.process.pid
        used = len(os.listdir(f"/proc/{number}/fd"))
        resource.prlimit(number, resource.RLIMIT_NOFILE, (used + 20, used + 20))  # lower than it knows
        busy = cpu_seconds(number)
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port))).sendall(b"GET /")
        began = time.monotonic()
        while time.monotonic() - began < 3:
            assert healthy(server.port)
            time.sleep(0.2)
        assert cpu_seconds(number) - busy < 2.5
        assert server.complete().status_code == 200
    assert len(server.log.read_text()) < 20_000


def healthy(port: int) -> bool:
    """Whether the server answers, at the second attempt at the latest."""
    for _ in range(2):
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            continue
    return False


def cpu_seconds(number: int) -> float:
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_small_parts_of_an_answer_are_sent_at_once() -> None:
    """Without this option a part waits for the client to confirm the one before: 40 ms on Linux."""

    async def is_prompt(listener: socket.socket) -> bool:
        option = asyncio.get_running_loop().create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                connection = transport.get_extra_info("socket")
                option.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        loop = asyncio.get_running_loop()
        async with await loop.create_server(Server, sock=listener):
            with socket.create_connection(listener.getsockname()):
                return bool(await option)

    # a browser of other tests may have left a loop in this thread
    with bound("127.0.0.1", 0) as [listener], ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(is_prompt(listener))).result()
