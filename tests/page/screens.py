"""The screenshots of the documentation: python -m tests.page.screens"""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

import unmask
from tests.page.conftest import PROMPT, Seen, ended
from tests.page.steps import cells, expect, scrub, to_end
from tests.serving.conftest import Slow, listening
from tools.browser import find
from unmask.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
SCREENS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1440, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}
USED = {"desktop-light-compared": "page.png", "phone-light-compared": "page-phone.png"}  # in texts
COLOURS = 128  # of a picture; more look the same
SECONDS = 0.02  # that a forward takes at least, so that a run can be seen


def main() -> None:
    """Write docs/page.png, docs/page-phone.png, docs/screens/*.png and docs/trace.png."""
    torch.set_num_threads(1)
    model = Slow(unmask.load("mini-llada"), SECONDS)
    config = unmask.GenerationConfig(max_new_tokens=64)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        with listening(model, model_name="mini-llada", config=config) as running:
            for scheme in ("light", "dark"):
                for name, screen in SCREENS.items():
                    seen = Seen(browser, color_scheme=scheme, **screen)
                    shoot(seen.open(running.url, rival=None), f"{name}-{scheme}")
        with TemporaryDirectory() as folder:
            shoot_traces(Seen(browser, viewport={"width": 1280, "height": 800}).page, Path(folder))


def shoot(page: Any, name: str) -> None:
    """Take the page at the start, running, compared, stopped and with an error."""
    expect(page.locator(".demo-count").nth(1)).to_have_text(re.compile(r"1\d forwards"), timeout=30_000)
    save(page, f"{name}-start")
    page.get_by_role("button", name="Write code").click()
    count = page.get_by_label("Run of base").locator("[data-counter=forwards]")
    expect(count).to_have_text(re.compile(r"\d\d"), timeout=60_000)
    save(page, f"{name}-running")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("body")).to_have_attribute("data-state", "stopped")
    save(page, f"{name}-stopped")
    page.get_by_role("button", name="Percent").click()
    ended(page)
    to_end(page)
    if name.startswith("desktop"):
        cells(page).nth(3).hover()
    save(page, f"{name}-compared")
    page.get_by_label("Prompt", exact=True).fill(" ")
    page.get_by_role("button", name="Decode").click()
    expect(page.get_by_role("alert")).to_be_visible()
    save(page, f"{name}-error")


def save(page: Any, name: str) -> None:
    """Save the screen when it rests."""
    page.wait_for_timeout(300)
    write(DOCS / USED.get(name, f"screens/{name}.png"), page.screenshot())


def write(path: Path, picture: bytes) -> None:
    """Write a picture with few colours, which makes it small."""
    opened = Image.open(BytesIO(picture)).convert("RGB")
    path.parent.mkdir(exist_ok=True)
    opened.quantize(COLOURS, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)


def shoot_traces(page: Any, folder: Path) -> None:
    """Take a step of the page of two traces."""
    files = [folder / f"{name}.jsonl" for name in ("less", "threshold")]
    for file in files:
        call("generate", "-m", "mini-llada", PROMPT, "-n", 64, "-s", file.stem, "--trace", file)
    call("trace", *files, "--html", folder / "page.html")
    page.goto((folder / "page.html").as_uri())
    scrub(page, 5)
    cells(page).nth(6).focus()
    write(DOCS / "trace.png", page.screenshot(full_page=True))


def call(*options: object) -> None:
    result = CliRunner().invoke(app, list(map(str, options)))
    assert result.exit_code == 0, result.output


if __name__ == "__main__":
    main()
