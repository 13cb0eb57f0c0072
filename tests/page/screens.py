"""The screenshots of the documentation: python -m tests.page.screens"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

import unmask
from tests.page.conftest import Seen, installed
from tests.page.steps import PROMPT, cells, decode, scrub
from tests.serving.conftest import listening
from unmask.cli.app import app

DOCS = Path(__file__).parent.parent.parent / "docs"
RIVAL = "threshold"
STEP, POSITION = 5, 6


def main() -> None:
    """Write docs/page.png, docs/page-phone.png and docs/trace.png."""
    torch.set_num_threads(1)
    model = unmask.load("mini-llada")
    config = unmask.GenerationConfig(max_new_tokens=64)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=installed(), args=["--no-sandbox"])
        with listening(model, model_name="mini-llada", config=config) as running:
            wide = Seen(browser, viewport={"width": 1360, "height": 900})
            narrow = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
            shoot(wide.open(running.url), "page.png", rival=RIVAL)
            shoot(
                Seen(browser, **narrow, device_scale_factor=2).open(running.url),
                "page-phone.png",
                whole=False,
            )
        with TemporaryDirectory() as folder:
            shoot_traces(Seen(browser, viewport={"width": 1280, "height": 800}).page, Path(folder))


def shoot(page: Any, name: str, *, rival: str = "", whole: bool = True) -> None:
    """A step of the live page."""
    page.get_by_label("Compare with", exact=True).select_option(rival)
    decode(page)
    show(page, name, whole=whole)


def shoot_traces(page: Any, folder: Path) -> None:
    """The same step of the page of two traces."""
    files = [folder / f"{name}.jsonl" for name in ("less", RIVAL)]
    for file in files:
        call("generate", "-m", "mini-llada", PROMPT, "-n", 64, "-s", file.stem, "--trace", file)
    call("trace", *files, "--html", folder / "page.html")
    page.goto((folder / "page.html").as_uri())
    show(page, "trace.png")


def show(page: Any, name: str, *, whole: bool = True) -> None:
    """Save a picture of the whole page, or of the screen below the request."""
    scrub(page, STEP)
    cells(page).nth(POSITION).focus()
    if not whole:
        page.locator("#stage").evaluate("stage => scrollTo(0, stage.offsetTop - 8)")
    page.screenshot(path=DOCS / name, full_page=whole)


def call(*options: object) -> None:
    result = CliRunner().invoke(app, list(map(str, options)))
    assert result.exit_code == 0, result.output


if __name__ == "__main__":
    main()
