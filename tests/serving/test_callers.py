"""Who may call: not the page of another site, whatever it sends from the browser of this machine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.serving.conftest import Running, listening
from unmask.models.trunk import Trunk
from unmask.serving.callers import is_our_host

COMPLETE = "/v1/completions"
BODY = {"prompt": "a", "max_tokens": 2}


@pytest.mark.parametrize(
    "kind",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", "x" * 999],
)
def test_a_body_of_another_type_is_refused(server: Running, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    refused = server.post(COMPLETE, content=b'{"prompt": "a"}', headers=headers)
    assert refused.status_code == 415
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
def test_a_body_of_json_is_read(server: Running, kind: str) -> None:
    headers = {"content-type": kind}
    assert server.post(COMPLETE, content=b'{"prompt": "a"}', headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/v1/models", "/", COMPLETE])
def test_a_request_for_another_host_is_refused(server: Running, path: str) -> None:
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "localhost@evil.example", ""):
        method = "POST" if path == COMPLETE else "GET"
        answer = httpx.request(method, server.url + path, headers={"host": host}, json=BODY)
        assert answer.status_code == 421
        assert answer.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize(
    ("bound", "allowed", "good", "bad"),
    [
        ("127.0.0.1", (), ["127.0.0.1:80", "localhost", "LOCALHOST:1", "[::1]:8", "127.0.0.2"], ["10.0.0.1"]),
        ("::1", (), ["[::1]:80", "localhost"], ["example.org"]),
        (
            "localhost",
            ("Chat.Example",),
            ["localhost", "chat.example:443"],
            ["x.chat.example"],
        ),
        ("0.0.0.0", (), ["10.0.0.1:8000", "[fe80::1]", "localhost"], ["example.org", "10.0.0.1.nip.io"]),
        ("box", (), ["box:8000", "10.0.0.1"], ["boxes", "example.org"]),
        ("127.0.0.1", ("*",), ["anything.example", ""], []),
    ],
)
def test_a_host_is_known_by_where_the_server_was_bound(
    bound: str, allowed: tuple[str, ...], good: list[str], bad: list[str]
) -> None:
    assert [name for name in good if not is_our_host(name, bound, allowed)] == []
    assert [name for name in [*bad, "a b", "[", "a:b:c"] if is_our_host(name, bound, allowed)] == (
        ["a b", "[", "a:b:c"] if "*" in allowed else []
    )


def test_a_page_of_another_origin_may_not_call(model: Trunk) -> None:
    def ask(origin: str | None, method: str = "POST", **settings: Any) -> httpx.Response:
        headers = {} if origin is None else {"origin": origin}
        path = COMPLETE if method == "POST" else "/v1/models"
        return httpx.request(method, server.url + path, headers=headers, json=BODY, timeout=20)

    with listening(model, cors=("https://good.example",)) as server:
        own = server.url
        for origin in (None, own, "https://good.example"):
            assert ask(origin).status_code == 200
        for origin in ("https://evil.example", "null", "http://localhost:3000", own + ".evil.example"):
            for method in ("POST", "GET"):
                refused = ask(origin, method)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "wrong_origin")
                assert "access-control-allow-origin" not in refused.headers
    with listening(model, cors=("*",)) as server:
        assert ask("https://any.example").status_code == 200


def test_more_hosts_may_be_allowed(model: Trunk) -> None:
    with listening(model, allowed_hosts=("chat.example",)) as server:
        assert server.get("/healthz", headers={"host": "chat.example"}).status_code == 200
        assert server.get("/healthz", headers={"host": "other.example"}).status_code == 421
