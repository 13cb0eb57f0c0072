"""A real browser and a running server of mini-llada; tests are skipped if there is no browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.serving.conftest import Running, listening
from tools.browser import find
from unmask.models.trunk import Trunk

LENGTH = 32
PROMPT = "Multiply 19 by 13."


def driver() -> Any:
    """Return playwright, or skip the test if it is not installed."""
    return pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture(scope="session")
def browser(site: Running) -> Iterator[Any]:
    """A browser that closes before the server, which waits for its connections."""
    playwright = driver()
    with playwright.sync_playwright() as started:
        try:
            opened = started.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        except playwright.Error as error:
            stop = pytest.fail if os.environ.get("CI") else pytest.skip
            stop(f"no browser could be started: {str(error).splitlines()[0]}; run tools/browser.py")
        yield opened
        opened.close()


def decode(page: Any, prompt: str = PROMPT) -> None:
    """Ask, and wait for the answer."""
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Decode").click()
    ended(page)


def ended(page: Any) -> None:
    """Wait until all runs are over."""
    driver().expect(page.locator("body")).to_have_attribute("data-state", "done", timeout=30_000)


class Seen:
    """A page, with its requests, errors and warnings."""

    def __init__(self, browser: Any, **settings: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **settings})
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self._note(message))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, url: str, sampler: str | None = None, rival: str | None = "") -> Any:
        """Open a URL, wait until the page is ready, and choose samplers; None: as the page does."""
        self.page.goto(url)
        driver().expect(self.page.locator("#decode")).to_be_enabled()
        for label, name in (("Sampler", sampler), ("Compare with", rival)):
            if name is not None:
                self.page.get_by_label(label, exact=True).select_option(name)
        return self.page


@pytest.fixture(scope="session")
def shared(browser: Any) -> Iterator[Seen]:
    """The page of all tests that open it in the usual way: a new one for each would cost too much."""
    opened = Seen(browser)
    yield opened
    opened.context.close()


@pytest.fixture
def seen(shared: Seen) -> Iterator[Seen]:
    """A page that must log no error or warning."""
    shared.complaints.clear()
    shared.requests.clear()
    yield shared
    assert shared.complaints == []


@pytest.fixture(scope="session")
def decoded(browser: Any, site: Running) -> Iterator[Any]:
    """A page with a run of `less`, for tests that only look at it."""
    opened = Seen(browser)
    page = opened.open(site.url, "less")
    decode(page)
    yield page
    opened.context.close()
    assert opened.complaints == []


@pytest.fixture(scope="session")
def mini() -> Trunk:
    torch.set_num_threads(1)
    return unmask.load("mini-llada")


@pytest.fixture(scope="session")
def site(mini: Trunk) -> Iterator[Running]:
    """A server of mini-llada, for short answers."""
    config = unmask.GenerationConfig(max_new_tokens=LENGTH)
    with listening(mini, model_name="mini-llada", config=config) as running:
        yield running


def offline(mini: Trunk, sampler: str, prompt: str, **fields: Any) -> unmask.Generation:
    """The answer that the page must show."""
    chat = [{"role": "user", "content": prompt}]
    config = unmask.GenerationConfig(max_new_tokens=LENGTH)
    [made] = unmask.generate(mini, [chat], unmask.make_sampler(sampler, **fields), config)
    return made


@pytest.fixture(scope="session")
def dispute(mini: Trunk) -> tuple[str, str]:
    """A prompt, and a sampler that answers it with other tokens than `less`."""
    for prompt in ("Multiply 19 by 13.", "What is 50% of 120?", "Find x if 5x - 8 = 12."):
        usual = offline(mini, "less", prompt).token_ids
        for name in ("threshold", "less-jsd-only", "random"):
            found = offline(mini, name, prompt).token_ids
            if any(left != right for left, right in zip(usual, found, strict=False)):
                return prompt, name
    pytest.fail("no prompt was found on which two samplers differ")


@pytest.fixture(scope="session")
def traces(dispute: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Traces of the same prompt under two samplers, as the command line writes them."""
    from typer.testing import CliRunner

    from unmask.cli.app import app

    folder = tmp_path_factory.mktemp("traces")
    prompt, rival = dispute
    paths = {name: folder / f"{name}.jsonl" for name in ("less", rival)}
    for name, path in paths.items():
        options = ["generate", "-m", "mini-llada", prompt, "-n", str(LENGTH), "-s", name]
        result = CliRunner().invoke(app, [*options, "--trace", str(path)])
        assert result.exit_code == 0, result.output
    return paths
