"""Requests made from /openapi.json, good ones and bad ones: none may be the server's fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.serving.conftest import Running, listening, wait_until
from unmask.models.trunk import Trunk
from unmask.serving import Limits

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = 40  # of every route that takes a body, good and bad
ROUTES = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/models": "GET",
    "/v1/models/{name}": "GET",
    "/healthz": "GET",
    "/readyz": "GET",
    "/metrics": "GET",
}
GOOD, BAD = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def small_server(model: Trunk) -> Iterator[Running]:
    """A server that decodes little."""
    with listening(model, limits=Limits(max_new_tokens=32, max_prompt_tokens=64)) as running:
        yield running


@pytest.fixture(scope="module")
def described(small_server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{small_server.url}/openapi.json")


def test_every_route_is_described(described: Any) -> None:
    found = {made.ok().path: made.ok().method.upper() for made in described.get_all_operations()}
    assert found == ROUTES


@pytest.mark.parametrize(
    ("path", "mode"),
    [(path, mode) for path, method in ROUTES.items() for mode in (GOOD, BAD)[: 1 + (method == "POST")]],
)
def test_no_request_is_the_servers_fault(small_server: Running, described: Any, path: str, mode: Any) -> None:
    @settings(
        max_examples=EXAMPLES if ROUTES[path] == "POST" else 10,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described[path][ROUTES[path]].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(timeout=20)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)
        if answer.status_code >= 400 and answer.headers["content-type"] == ["application/json"]:
            assert answer.json()["error"]["message"]

    ask()
    wait_until(lambda: small_server.engine.running == small_server.engine.waiting == 0)
    assert small_server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200
