"""The page of a trace, opened from disk in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.page.conftest import LENGTH, Seen
from tests.page.steps import cells, counter, expect, held_by, scrub, to_end
from tests.trace.revoking import Tidy, revoking_run
from tests.trace.test_trace import write
from unmask.cli.app import app
from unmask.trace import Trace, count, plain, read_trace, replay


def written(folder: Path, *traces: Path) -> str:
    """The address of the page that the command line writes."""
    out = folder / "page.html"
    result = CliRunner().invoke(app, ["trace", *map(str, traces), "--html", str(out)])
    assert result.exit_code == 0, result.output
    return out.as_uri()


def texts(trace: Trace, step: int | None = None) -> list[str]:
    """What each generated position holds after a step, the mask as a dot."""
    row, header = replay(trace, step)[0], trace.header
    return ["·" if token == header.mask_id else trace.texts[str(token)] for token in row[header.start :]]


def same(shown: str, text: str) -> bool:
    return shown == ("⊣" if text.startswith("<|") else text.replace("\n", "↵\n"))


def test_a_trace_is_replayed_from_disk_step_by_step(traces, seen: Seen, tmp_path) -> None:
    page, trace = seen.page, read_trace(traces["less"])
    page.goto(written(tmp_path, traces["less"]))
    expect(page.get_by_role("heading", name="less")).to_be_visible()
    counts = count(trace, 0)
    assert to_end(page) == counts.steps
    assert counter(page, "forwards") == str(counts.forwards)
    for step in (1, counts.steps // 2, counts.steps):
        scrub(page, step)
        for cell, text in zip(cells(page).all(), texts(trace, step), strict=True):
            kinds = str(cell.get_attribute("class"))
            if text == "·":
                assert "rule" not in kinds
                assert "forced" not in kinds
            else:
                assert same(str(cell.text_content()), text)


def test_a_trace_also_shows_which_signals_held_a_position_back(traces, seen: Seen, tmp_path) -> None:
    page, trace = seen.page, read_trace(traces["less"])
    page.goto(written(tmp_path, traces["less"]) + "#1")
    threshold = trace.header.fields["min_confidence"]
    unsure = [place for place in trace.changes[0].held[0] if place.signals["confidence"] < threshold]
    assert cells(page, kind=held_by("confidence")).count() == len(unsure)
    assert cells(page, kind=held_by("persistence")).count() == len(trace.changes[0].held[0]) - len(unsure)
    cells(page).nth(0).hover()
    expect(page.locator(".inspector")).to_contain_text("needs ≥ 0.75")


def test_two_traces_show_where_they_part_and_ask_for_nothing(traces, seen: Seen, tmp_path) -> None:
    page = seen.page
    page.goto(url := written(tmp_path, *traces.values()))
    held = [texts(read_trace(path)) for path in traces.values()]
    pairs = enumerate(zip(*held, strict=True))
    different = [index for index, pair in pairs if pair[0] != pair[1] and "·" not in pair]
    expect(page.locator(".verdict")).to_contain_text(f"part at position {different[0] + 1}:")
    for run in (0, 1):
        assert cells(page, run).count() == LENGTH
        assert cells(page, run, ".differs").count() == len(different)
        assert "first" in str(cells(page, run).nth(different[0]).get_attribute("class"))
    assert seen.requests == [url]


def test_traces_of_different_prompts_are_refused_with_a_sentence(traces, tmp_path) -> None:
    other = tmp_path / "other.jsonl"
    options = ["generate", "-m", "mini-llada", "Hello.", "-n", str(LENGTH), "--trace", str(other)]
    assert CliRunner().invoke(app, options).exit_code == 0
    result = CliRunner().invoke(app, ["trace", str(traces["less"]), str(other)])
    assert result.exit_code == 2
    assert "begin with different canvases" in result.output


def test_several_rows_can_be_chosen(seen: Seen, tmp_path) -> None:
    file = tmp_path / "rows.jsonl"
    options = ["generate", "-m", "mini-llada", "Hello.", "What is 50% of 120?", "-n", "12"]
    assert CliRunner().invoke(app, [*options, "--trace", str(file)]).exit_code == 0
    page, trace = seen.page, read_trace(file)
    page.goto(written(tmp_path, file))
    page.get_by_label("Row").select_option("1")
    assert to_end(page) == count(trace, 1).steps
    row = replay(trace)[1][trace.header.start :]
    for cell, token in zip(cells(page).all(), row, strict=True):
        if token != trace.header.mask_id:
            assert same(str(cell.text_content()), trace.texts[str(token)])


def kinds(page: Any) -> list[str]:
    """The first state class of every cell."""
    return [str(cell.get_attribute("class")).split()[1] for cell in cells(page).all()]


def revoking_page(folder: Path) -> str:
    canvas, steps = revoking_run()
    fields = plain(Tidy())
    return written(folder, write(folder / "run.jsonl", canvas, steps, sampler="tidy", fields=fields))


def test_revoked_and_rewritten_tokens_have_their_own_looks(seen: Seen, tmp_path) -> None:
    page = seen.page
    page.goto(revoking_page(tmp_path) + "#2")
    assert kinds(page) == ["rule", "held", "revoked", "rule"]
    assert cells(page).nth(2).text_content() == "<5>"
    cells(page).nth(2).hover()
    expect(page.locator(".inspector")).to_contain_text("in step 2, would now take “<9>”")
    scrub(page, 3)
    assert kinds(page) == ["rewritten", "held", "rule", "rule"]
    cells(page).nth(0).hover()
    expect(page.locator(".inspector")).to_contain_text("in step 3, was “<3>”")
    for name in ("revoked: masked again", "rewritten"):
        expect(page.get_by_label("Legend")).to_contain_text(name)
    assert counter(page, "revoked") == "2"
    assert page.locator(".chart .undone").count() == 1


def test_signals_of_any_name_are_listed_against_their_thresholds(seen: Seen, tmp_path) -> None:
    page = seen.page
    page.goto(revoking_page(tmp_path) + "#1")
    assert [cell.get_attribute("data-reason") for cell in cells(page).all()] == ["", "neatness", "", "fuss"]
    cells(page).nth(3).hover()
    shown = {"neatness": "needs ≥ 0.5", "fuss": "needs ≤ 0.2", "agrees": "needs yes", "size": "no threshold"}
    for name, words in shown.items():
        expect(page.locator(f"[data-signal={name}]")).to_contain_text(words)
    expect(page.locator(".chart")).to_have_attribute("aria-label", re.compile("mean neatness"))
    expect(page.get_by_label("Legend")).to_contain_text("held by fuss")
