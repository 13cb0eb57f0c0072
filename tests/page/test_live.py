"""The page of a running server, in a real browser."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

import unmask
from tests.page.conftest import LENGTH, Seen, offline
from tests.page.steps import (
    CONTRAST,
    PROMPT,
    answer,
    cells,
    counter,
    decode,
    ended,
    expect,
    held_by,
    scrub,
    slide,
    to_end,
)
from tests.serving.conftest import Running, Slow, listening, wait_until
from unmask.models.trunk import Trunk
from unmask.serving import Limits


def test_a_prompt_becomes_the_text_and_the_counts_of_generate(decoded: Any, mini: Trunk) -> None:
    page = decoded
    made = offline(mini, "less", PROMPT)
    last = to_end(page)
    assert answer(page) == made.text
    assert last == made.steps
    assert counter(page, "steps") == str(made.steps)
    assert counter(page, "forwards") == str(made.forwards)
    assert counter(page, "forced") == f"{made.forced_share:.0%}".replace("%", " %")
    assert float(counter(page, "seconds")) > 0
    shown = "".join(cells(page).all_text_contents()).replace("↵\n", "\n")
    assert shown.startswith(made.text)
    assert cells(page).count() == LENGTH


def test_the_slider_goes_back_to_masks_and_through_every_step(decoded: Any) -> None:
    page = decoded
    last = to_end(page)
    scrub(page, 0)
    expect(cells(page, kind=".idle")).to_have_count(LENGTH)
    done = []
    for step in range(1, last + 1):
        page.get_by_role("button", name="One step on").click()
        assert counter(page, "steps") == str(step)
        by = [cells(page, kind=f".{kind}").count() for kind in ("rule", "forced", "leftover")]
        held = [cells(page, kind=f".{kind}").count() for kind in ("held", "waiting")]
        assert sum(by) + sum(held) == LENGTH
        assert cells(page, kind=".fresh").count() == sum(by) - (done[-1] if done else 0)
        done.append(sum(by))
    assert done == sorted(done)
    assert done[-1] == LENGTH


def test_the_first_step_holds_every_position_for_its_history(decoded: Any) -> None:
    page = decoded
    scrub(page, 1)
    held = cells(page, kind=held_by("confidence")).count() + cells(page, kind=held_by("persistence")).count()
    assert held == LENGTH - cells(page, kind=".forced").count()
    assert cells(page, kind=".forced").count() > 0
    cues = {cell.get_attribute("data-cue") for cell in cells(page).all()}
    assert cues <= {"C", "P", "F"}  # a letter besides the colour


def test_focus_shows_signals_and_candidates_and_arrows_walk(decoded: Any) -> None:
    page = decoded
    scrub(page, 2)
    cells(page).first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(cells(page).nth(2)).to_be_focused()
    expect(cells(page).nth(2)).to_have_attribute("aria-selected", "true")
    panel = page.locator(".inspector")
    for sentence in ("needs ≥ 0.75", "needs yes", "needs ≤ 0.04"):
        expect(panel).to_contain_text(sentence)
    expect(panel.locator(".candidates li")).to_have_count(6)
    chances = [float(text) for text in panel.locator(".candidates .value").all_text_contents()]
    assert chances == sorted(chances, reverse=True)
    confidence = panel.locator("[data-signal=confidence] .value").text_content()
    assert float(confidence) == pytest.approx(chances[0], abs=1e-3)


def test_a_threshold_of_any_name_holds_positions_back(site: Running, seen: Seen) -> None:
    page = seen.open(site.url, "klass")
    decode(page)
    scrub(page, 1)
    cells(page, kind=".held").first.hover()
    expect(page.locator("[data-signal=kl]")).to_contain_text("needs ≤ 0.01")
    expect(page.locator(".inspector .tag")).to_contain_text("by kl")  # a first step has no divergence
    expect(page.get_by_label("Legend")).to_contain_text("held by kl")


def test_an_answer_matches_the_pattern_of_the_page_and_tokens_that_do_not_fit_are_held(
    site: Running, seen: Seen
) -> None:
    pytest.importorskip("outlines_core")
    page = seen.open(site.url, "base")
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("The answer matches").fill(r"(\d+ plus )+\d+")
    page.get_by_label("Steps", exact=True).fill("2")
    decode(page)
    assert re.fullmatch(r"(\d+ plus )+\d+", answer(page))
    scrub(page, 1)
    expect(cells(page, kind=held_by("constraint")).first).to_be_visible()
    expect(page.get_by_label("Legend")).to_contain_text("held by constraint")


def test_two_samplers_are_shown_side_by_side_with_their_first_difference(
    site: Running, seen: Seen, mini: Trunk, dispute: tuple[str, str]
) -> None:
    prompt, rival = dispute
    page = seen.open(site.url, "less", rival)
    decode(page, prompt)
    to_end(page)
    for run, name in enumerate(("less", rival)):
        made = offline(mini, name, prompt)
        assert answer(page, run) == made.text
        assert counter(page, "steps", run) == str(made.steps)
    shown = [cells(page, run).all_text_contents() for run in (0, 1)]
    different = [index for index, pair in enumerate(zip(*shown, strict=True)) if pair[0] != pair[1]]
    expect(page.locator(".verdict")).to_contain_text(f"part at position {different[0] + 1}:")
    for run in (0, 1):
        assert "first" in str(cells(page, run).nth(different[0]).get_attribute("class"))
        assert cells(page, run, ".differs").count() == len(different)


def test_equal_runs_are_reported_as_equal(site: Running, seen: Seen) -> None:
    page = seen.open(site.url, "less", "less")
    decode(page)
    to_end(page)
    expect(page.locator(".verdict")).to_have_text(
        f"{counter(page, 'forwards')} forwards each, the same text."
    )
    assert page.locator(".panel .differs").count() == 0


def test_a_moved_threshold_decodes_again(site: Running, seen: Seen, mini: Trunk) -> None:
    page = seen.open(site.url, "less")
    decode(page)
    before = offline(mini, "less", PROMPT)
    made = offline(mini, "less", PROMPT, min_confidence=0.35)
    assert (made.steps, made.text) != (before.steps, before.text)  # or the slider shows nothing
    slide(page, "Sampler: confidence", 40)
    expect(page.locator(".panel .fields")).to_contain_text("min_confidence 0.35")
    ended(page)
    expect(page.locator("[data-counter=steps]")).to_have_text(str(made.steps))
    assert answer(page) == made.text


def test_every_threshold_of_a_sampler_has_a_slider(decoded: Any) -> None:
    page = decoded
    page.get_by_label("Sampler", exact=True).select_option("klass")
    assert page.get_by_label("Sampler: kl", exact=True).get_attribute("aria-valuetext") == "0.01"
    assert page.get_by_label("Sampler: jsd", exact=True).count() == 0
    page.get_by_label("Sampler", exact=True).select_option("base")
    assert page.locator(".slot input").count() == 0


def test_gaps_in_a_plain_text_are_filled(site: Running, seen: Seen, mini: Trunk) -> None:
    page = seen.open(site.url, "less")
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Prompt is").select_option("text")
    decode(page, "19 * 13 = [[gap 3]].")
    made = unmask.infill(mini, "19 * 13 = [[gap 3]].", unmask.make_sampler("less"))
    assert answer(page) == made.text
    assert cells(page, kind=".given").count() > 0


def test_the_chart_has_a_bar_per_step_and_seeks(decoded: Any) -> None:
    page = decoded
    last = to_end(page)
    assert page.locator(".chart .bar").count() == last
    assert page.locator(".chart .drift").count() == 1
    box = page.locator(".chart").bounding_box()
    page.locator(".chart").click(position={"x": box["width"] * 1.5 / last, "y": 20})
    expect(page.get_by_role("slider", name="Step", exact=True)).to_have_value("2")


@pytest.mark.parametrize(
    ("sampler", "signal"), [("first-mask", "confidence"), ("base", "score"), ("less", "jsd")]
)
def test_the_chart_shows_a_signal_of_the_sampler(
    site: Running, seen: Seen, sampler: str, signal: str
) -> None:
    page = seen.open(site.url, sampler)
    decode(page)
    expect(page.locator(".chart")).to_have_attribute("aria-label", re.compile(f"mean {signal},"))


def test_a_refusal_of_the_server_is_shown_as_a_sentence(browser: Any, site: Running) -> None:
    page = (seen := Seen(browser)).open(site.url)
    page.locator("form").evaluate("form => { form.noValidate = true; }")
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Prompt", exact=True).fill("hello")
    for field, value, sentence in REFUSALS:
        page.get_by_label(field).fill(value)
        expect(page.get_by_role("alert")).to_be_hidden()  # the last one, as the user acts
        page.get_by_role("button", name="Decode").click()
        expect(page.get_by_role("alert")).to_contain_text(sentence)
        expect(page.locator("#stage")).to_be_hidden()
        expect(page.get_by_role("button", name="Decode")).to_be_enabled()
        page.get_by_label(field).fill("")
    seen.context.close()


def test_a_server_that_is_gone_is_reported(browser: Any, mini: Trunk) -> None:
    seen = Seen(browser)
    with listening(mini, model_name="mini-llada") as running:
        page = seen.open(running.url)
    page.get_by_role("button", name="Percent").click()
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    seen.context.close()


def test_a_decoding_can_be_stopped_and_what_came_is_kept(browser: Any, mini: Trunk) -> None:
    seen = Seen(browser)
    with listening(Slow(mini, 0.2), model_name="mini-llada") as running:
        page = seen.open(running.url, "base")
        page.get_by_label("Prompt", exact=True).fill(PROMPT)
        page.get_by_role("button", name="Decode").click()
        expect(page.locator("[data-counter=steps]")).to_have_text(re.compile(r"[2-9]|\d\d"))
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("body")).to_have_attribute("data-state", "stopped")
        wait_until(lambda: running.engine.running == 0)
        assert 2 <= to_end(page) < 16
        assert cells(page, kind=".rule").count() >= 2
    seen.context.close()
    assert seen.complaints == []


def test_a_stopped_run_is_not_compared(browser: Any, mini: Trunk) -> None:
    seen = Seen(browser)
    config = unmask.GenerationConfig(max_new_tokens=LENGTH)
    with listening(Slow(mini, 0.05), model_name="mini-llada", config=config) as running:
        page = seen.open(running.url, "first-mask", "base")
        page.get_by_role("button", name="Story sum").click()
        expect(cells(page, 0, ".rule")).to_have_count(LENGTH)  # the first run is over
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("body")).to_have_attribute("data-state", "stopped")
        expect(page.locator(".verdict")).to_have_text("base did not finish, so the two are not compared.")
        assert page.locator(".panel .differs").count() == 0
    seen.context.close()
    assert seen.complaints == []


def test_a_decoding_that_fails_half_way_is_reported(browser: Any, mini: Trunk) -> None:
    seen = Seen(browser)
    with listening(Slow(mini, 0.2), model_name="mini-llada", limits=Limits(deadline=0.7)) as running:
        page = seen.open(running.url, "base")
        page.get_by_label("Prompt", exact=True).fill(PROMPT)
        page.get_by_role("button", name="Decode").click()
        expect(page.get_by_role("alert")).to_contain_text("0.7 s")
        expect(page.get_by_role("button", name="Decode")).to_be_enabled()
    seen.context.close()
    assert seen.complaints == []


def test_a_key_is_asked_for_and_kept_in_memory_only(browser: Any, mini: Trunk) -> None:
    seen = Seen(browser)
    config = unmask.GenerationConfig(max_new_tokens=8)
    with listening(mini, model_name="mini-llada", api_key="secret-7", config=config) as running:
        page = seen.page
        page.goto(running.url)
        expect(page.get_by_role("alert")).to_contain_text("The API key is missing or wrong")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("secret-7")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Decode")).to_be_enabled()
        decode(page)
        assert answer(page)
        stored = page.evaluate("() => [localStorage.length, sessionStorage.length, document.cookie]")
        assert stored == [0, 0, ""]
        assert not [url for url in seen.requests if "secret" in url]
    seen.context.close()


def test_markup_in_a_prompt_stays_text(site: Running, seen: Seen) -> None:
    page = seen.open(site.url, "less")
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Prompt is").select_option("text")
    nasty = (
        "<img src=x onerror=\"document.title='caught'\"><script>document.title='caught'</script> [[gap 2]]"
    )
    decode(page, nasty)
    assert answer(page).startswith(nasty.partition(" [[gap")[0])
    assert page.locator("#stage img, #stage script").count() == 0
    assert page.title() == "unmask"


def test_nothing_leaves_the_origin_and_the_policy_forbids_it(decoded: Any, site: Running) -> None:
    requests = decoded.evaluate("() => performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [url for url in requests if "completions" in url]
    assert [url for url in requests if not url.startswith(site.url)] == []
    policy = httpx.get(site.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_is_usable_by_keyboard_alone(site: Running, seen: Seen, mini: Trunk) -> None:
    page = seen.open(site.url, "less")
    page.get_by_label("Prompt", exact=True).focus()
    page.keyboard.type(PROMPT)
    page.keyboard.press("Control+Enter")
    ended(page)
    reached = []
    page.get_by_label("Prompt", exact=True).focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Decode")).to_be_focused()
    page.get_by_text("API key", exact=True).focus()
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    assert reached[1:6] == ["One step back", "Step", "One step on", "Pace", "Share"]
    assert reached[6].startswith("1: ")
    assert answer(page) == offline(mini, "less", PROMPT).text


def test_a_phone_sees_everything_in_one_column_and_scrolls_to_the_canvas(browser: Any, site: Running) -> None:
    seen = Seen(browser, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = seen.open(site.url, "less", "threshold")
    expect(page.get_by_role("listbox")).to_have_count(0)
    decode(page, "Find 90% of 80.")
    expect(page.get_by_role("listbox").first).to_be_in_viewport(ratio=0.9)
    expect(page.locator(".verdict")).to_be_in_viewport()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    cells(page).nth(3).tap()
    expect(page.locator(".inspector").first).to_contain_text("confidence")
    expect(page.locator(".inspector").first).to_be_in_viewport()
    seen.context.close()
    assert seen.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(decoded: Any, scheme: str) -> None:
    decoded.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # colours change at once
    scrub(decoded, 3)
    assert decoded.evaluate(CONTRAST) == []


REFUSALS = (
    ("New tokens", "9999", "Max_tokens must be at most"),
    ("Block length", "many", "Block_length"),
    ("Temperature", "-1", "Temperature must be"),
)
FOCUSED = "() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
