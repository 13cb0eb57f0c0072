"""What a newcomer sees and does first, in a real browser."""

from __future__ import annotations

import json
import re
import runpy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.page.conftest import LENGTH, Seen
from tests.page.steps import (
    CONTRAST,
    answer,
    cells,
    counter,
    decode,
    ended,
    expect,
    held_by,
    scrub,
    to_end,
)
from tests.serving.conftest import Running, listening
from unmask.catalog import DEFAULT_SAMPLER_NAME
from unmask.models.trunk import Trunk
from unmask.samplers import GROUPS, SAMPLERS

ROOT = Path(__file__).parents[2]
WEB = ROOT / "unmask" / "trace" / "web"
EXAMPLES = json.loads((WEB / "examples.json").read_text(encoding="utf-8"))
LETTER = "cell => getComputedStyle(cell, '::after').content"


@pytest.fixture(scope="module")
def compared(browser: Any, site: Running) -> Any:
    """The first example, decoded with the samplers that the page chooses."""
    seen = Seen(browser, accept_downloads=True)
    page = seen.open(site.url, rival=None)
    page.get_by_role("group", name="Examples").get_by_role("button").first.click()
    ended(page)
    yield page
    seen.context.close()
    assert seen.complaints == []


def is_right(example: dict[str, str], text: str) -> bool:
    """Return whether a text ends in the answer of an example, or is a program that passes its check."""
    if "answer" in example:
        return re.search(rf"\b{example['answer']}\b[}}.]*$", text) is not None
    body = example["prompt"] if example["prompt"].startswith("def ") else ""
    exec(f"{body}\n{text}\n{example['check']}", {})
    return True


def test_every_example_is_answered_rightly_by_the_default_sampler(mini: Trunk) -> None:
    chats = [[{"role": "user", "content": example["prompt"]}] for example in EXAMPLES]
    answers = unmask.generate(mini, chats, max_new_tokens=64)
    wrong = [
        made.text for example, made in zip(EXAMPLES, answers, strict=True) if not is_right(example, made.text)
    ]
    assert wrong == []


def test_the_page_compares_the_default_sampler_with_base_and_says_what_was_won(compared: Any) -> None:
    to_end(compared)
    own, other = (int(counter(compared, "forwards", run)) for run in range(2))
    assert own < other == LENGTH
    assert answer(compared, 0) == answer(compared, 1)
    expect(compared.locator(".verdict")).to_have_text(f"{own} forwards instead of {other}, the same text.")
    names = [box.input_value() for box in compared.locator(".slot select").all()]
    assert names == [DEFAULT_SAMPLER_NAME, "base"]


def test_the_page_starts_with_the_sampler_that_the_operator_chose(browser: Any, mini: Trunk) -> None:
    with listening(mini, model_name="mini-llada", sampler=SAMPLERS["klass"], sampler_name="klass") as own:
        seen = Seen(browser)
        page = seen.open(own.url, rival=None)
        expect(page.get_by_label("Sampler", exact=True)).to_have_value("klass")
        seen.context.close()
        assert seen.complaints == []


def test_the_samplers_are_grouped_and_described(decoded: Any) -> None:
    page = decoded
    box = page.get_by_label("Sampler", exact=True)
    groups = [group.get_attribute("label") for group in box.locator("optgroup").all()]
    assert groups == [name for name in GROUPS if name in groups]
    assert box.locator("optgroup").first.locator("option").first.text_content() == "first-mask"
    sentences = set()
    for name in ("first-mask", "less", "base"):
        box.select_option(name)
        sentences.add(page.locator(".slot .summary").first.text_content())
    assert len(sentences) == 3
    assert "" not in sentences


@pytest.mark.parametrize("size", [(1300, 900), (1024, 600), (360, 640)], ids=str)
def test_the_button_is_on_the_first_screen_under_the_prompt(
    browser: Any, site: Running, size: tuple[int, int]
) -> None:
    seen = Seen(browser, viewport={"width": size[0], "height": size[1]})
    page = seen.open(site.url, rival=None)
    box = page.get_by_label("Prompt", exact=True).bounding_box()
    button = page.get_by_role("button", name="Decode")
    expect(button).to_be_in_viewport(ratio=1)
    assert 0 <= button.bounding_box()["y"] - box["y"] - box["height"] < 30
    button.click()
    expect(page.get_by_role("alert")).to_be_in_viewport(ratio=1)
    seen.context.close()
    assert seen.complaints == []


def test_words_in_backticks_are_shown_as_code(browser: Any, site: Running) -> None:
    facts = site.get("/v1/models/mini-llada").json()
    words = {"group": "", "summary": "Takes `steps`, `b` and a `.", "use": "", "fields": {"order": "As `x`."}}
    confidence = {**words, "fields": {"min_confidence": "See `y`."}}
    facts["unmask"]["sampler_words"] = {"base": words, "threshold": confidence}
    seen = Seen(browser)
    seen.page.route("**/v1/models/mini-llada", lambda route: route.fulfill(json=facts))
    page = seen.open(site.url, "threshold", "base")
    for summary in page.locator(".slot .summary").all():
        expect(summary).to_have_text("Takes steps, b and a `.")
        assert summary.locator("code").all_text_contents() == ["steps", "b"]
    expect(page.locator(".threshold").first).to_have_attribute("title", "See y.")
    page.get_by_role("button", name="Percent").click()
    ended(page)
    assert page.get_by_label("Run of base").locator(".fields code").all_text_contents() == ["x"]
    seen.context.close()
    assert seen.complaints == []


def test_no_description_of_a_sampler_shows_a_backtick(decoded: Any) -> None:
    box = decoded.get_by_label("Sampler", exact=True)
    for name in box.locator("option").all_text_contents():
        box.select_option(name)
        assert "`" not in str(decoded.locator(".slot").first.inner_html())


def test_the_words_of_the_server_explain_samplers_and_fields(browser: Any, site: Running) -> None:
    facts = site.get("/v1/models/mini-llada").json()
    words = {
        "group": "mine",
        "summary": "Waits.",
        "use": "Use it at home.",
        "fields": {"min_confidence": "How sure."},
    }
    facts["unmask"]["sampler_words"] = {"threshold": words}
    seen = Seen(browser)
    seen.page.route("**/v1/models/mini-llada", lambda route: route.fulfill(json=facts))
    page = seen.open(site.url, "threshold")
    expect(page.locator(".slot .summary").first).to_have_text("Waits. Use it at home.")
    expect(page.locator(".threshold").first).to_have_attribute("title", "How sure.")
    assert page.locator("optgroup[label=mine] option").first.text_content() == "threshold"
    page.get_by_role("button", name="Percent").click()
    ended(page)
    page.get_by_text("Settings of threshold").click()
    expect(page.locator(".fields")).to_contain_text("min_confidence 0.9 How sure.")
    seen.context.close()
    assert seen.complaints == []


def test_an_end_of_text_has_a_sign_of_its_own_that_the_legend_explains(compared: Any) -> None:
    to_end(compared)
    ends = set(cells(compared, 0, ".ends").all_text_contents())
    scrub(compared, 0)
    masks = set(cells(compared, 0, ".idle").all_text_contents())
    assert len(ends) == len(masks) == 1
    assert ends != masks
    legend = compared.get_by_label("Legend")
    assert {legend.locator("li", has_text=re.compile("end of text$")).locator(".cell").text_content()} == ends
    assert {legend.locator("li", has_text=re.compile("mask$")).locator(".cell").text_content()} == masks


def test_the_legend_explains_the_frame_of_new_tokens_and_why_an_end_waits(compared: Any) -> None:
    legend = compared.get_by_label("Legend")
    scrub(compared, 1)
    assert cells(compared, 0, ".fresh").count() > 0
    entry = legend.locator("li", has_text="committed in this step").locator(".cell")
    frame = "cell => getComputedStyle(cell).boxShadow"
    assert entry.evaluate(frame) == cells(compared, 0, ".fresh").first.evaluate(frame) != "none"
    assert cells(compared, 0, held_by("end_waits")).count() > 0
    expect(legend.locator("li", has_text="held by end_waits")).to_contain_text("masks before it")


def test_the_legend_is_beside_the_canvas(decoded: Any) -> None:
    legend = decoded.get_by_label("Legend").bounding_box()
    canvas = decoded.get_by_role("listbox").bounding_box()
    assert legend["x"] >= canvas["x"] + canvas["width"]
    assert legend["y"] <= canvas["y"]


def test_the_inspector_comes_when_a_position_is_pointed_at_and_goes_with_escape(decoded: Any) -> None:
    cells(decoded).first.focus()
    expect(decoded.locator(".inspector")).to_be_visible()
    decoded.keyboard.press("Escape")
    expect(decoded.locator(".inspector")).to_be_hidden()
    cells(decoded).nth(4).hover()
    expect(decoded.locator(".inspector")).to_contain_text("confidence")
    decoded.keyboard.press("Escape")


def test_letters_show_where_the_pointer_is_and_words_say_what_colours_do(decoded: Any) -> None:
    scrub(decoded, 1)
    decoded.keyboard.press("Escape")
    held = cells(decoded, kind=".held").first
    decoded.mouse.move(0, 0)
    assert held.evaluate(LETTER) == "none"
    held.hover()
    assert held.evaluate(LETTER).strip('"') == held.get_attribute("data-cue")
    assert f"held by {held.get_attribute('data-reason')}" in str(held.get_attribute("aria-label"))


def test_settings_and_plain_text_are_folded_away(decoded: Any) -> None:
    for name in ("Plain text", "Settings of less"):
        folded = decoded.locator("details", has=decoded.get_by_text(name, exact=True))
        assert folded.get_attribute("open") is None
    decoded.get_by_text("Settings of less").click()
    expect(decoded.locator(".fields")).to_contain_text("min_confidence 0.75")


def test_steps_are_shown_at_a_pace_that_a_person_can_follow(decoded: Any) -> None:
    expect(decoded.get_by_label("Pace")).to_have_value("4")


def test_a_recorded_run_loops_until_it_is_paused(browser: Any, site: Running) -> None:
    seen = Seen(browser)
    seen.page.clock.install()
    page = seen.open(site.url)
    expect(page.locator(".demo")).to_be_visible()
    masks = []
    for _ in range(24):  # seconds, in which it plays three times
        page.clock.run_for(1000)
        masks.append(page.locator(".demo .idle").count())
    assert len([count for count, after in pairwise(masks) if count == 0 and after > 0]) >= 2
    page.locator(".demo").get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert page.locator(".demo .idle").count() == 0
    seen.context.close()
    assert seen.complaints == []


def test_reduced_motion_stills_the_recorded_run_and_shows_steps_as_they_come(
    site: Running, seen: Seen
) -> None:
    seen.page.emulate_media(reduced_motion="reduce")
    page = seen.open(site.url, "less")
    expect(page.locator(".demo").get_by_role("button")).to_have_text("Play")
    assert page.locator(".demo .idle").count() == 0
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert page.evaluate(CONTRAST) == []
    decode(page)
    expect(page.get_by_label("Pace")).to_have_value("live")
    slider = page.get_by_role("slider", name="Step", exact=True)
    expect(slider).to_have_value(str(slider.get_attribute("max")))
    page.emulate_media(reduced_motion="no-preference")


def test_the_recorded_run_is_a_real_one() -> None:
    record = runpy.run_path(str(ROOT / "tools" / "record_demo.py"))["record"]
    demo = json.loads((WEB / "demo.json").read_text(encoding="utf-8"))
    assert record(demo["prompt"], "first-mask") == demo["runs"][0]
    texts = ["".join(text for text, _, _ in run["positions"]) for run in demo["runs"]]
    assert texts[0] == texts[1]


def test_an_error_goes_away_when_the_user_acts(site: Running, seen: Seen) -> None:
    page = seen.open(site.url)
    page.get_by_role("button", name="Decode").click()
    expect(page.get_by_role("alert")).to_contain_text("The prompt is empty")
    assert not [url for url in seen.requests if "completions" in url]
    page.get_by_label("Prompt", exact=True).fill("a")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_label("Prompt", exact=True).fill(" ")
    page.get_by_role("button", name="Decode").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_text("Settings", exact=True).click()
    page.locator("#max_tokens").evaluate("box => { box.value = '0'; }")
    page.get_by_role("button", name="Decode").click()  # the browser itself complains
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_shared_file_replays_the_runs_without_the_server(
    compared: Any, browser: Any, tmp_path: Path
) -> None:
    with compared.expect_download() as download:
        compared.get_by_role("button", name="Share").click()
    assert download.value.suggested_filename == "unmask-first-mask-base.html"
    file = tmp_path / "shared.html"
    download.value.save_as(file)
    seen = Seen(browser)
    seen.page.goto(file.as_uri())
    assert to_end(seen.page) == to_end(compared)
    for run in range(2):
        assert cells(seen.page, run).all_text_contents() == cells(compared, run).all_text_contents()
        assert counter(seen.page, "forwards", run) == counter(compared, "forwards", run)
    expect(seen.page.locator(".verdict")).to_have_text(str(compared.locator(".verdict").text_content()))
    expect(seen.page.locator(".given-prompt").first).to_have_text(EXAMPLES[0]["prompt"])
    cells(seen.page).first.hover()
    expect(seen.page.locator(".inspector").first).to_contain_text("needs ≥ 0.98")
    assert seen.requests == [file.as_uri()]
    seen.context.close()
    assert seen.complaints == []
