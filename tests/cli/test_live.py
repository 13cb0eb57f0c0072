"""The live canvas, in memory and under a real pseudo-terminal."""

from __future__ import annotations

import os
import signal
from functools import partial
from time import monotonic

import pytest
from rich.console import Console

from tests.trace.revoking import revoking_run
from unmask import GenerationConfig, make_sampler, plan, progress
from unmask.cli import live
from unmask.cli.live import Throttle
from unmask.cli.picture import END, GLYPHS, Picture
from unmask.text.generate import prepare
from unmask.types import Step


def picture_of(model, length: int = 24, prompts=("hello",), **settings) -> tuple[Picture, list]:
    config = GenerationConfig(max_new_tokens=length, **settings)
    batch = prepare(model, list(prompts), make_sampler("less-paper"), config)
    start, decode = batch.canvas.start, partial(model.tokenizer.decode, skip_special=False)
    picture = Picture(batch.canvas, batch.plan, decode, model.info.eos_ids, "run", start)
    return picture, list(batch.steps)


def drawn(picture: Picture, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(picture.render(width, height))
    console.file.close()
    return console.export_text().splitlines()


def test_a_frame_shows_masks_then_fewer_masks_then_none(llada_model):
    picture, steps = picture_of(llada_model)
    assert "0/24 tokens" in "\n".join(drawn(picture))
    for step in steps:
        picture.watch(step)
        masks = int((step.tokens == llada_model.info.mask_id).sum())
        frame = "\n".join(drawn(picture))
        legend = frame.count(GLYPHS["waiting"] + " waiting")
        shown = sum(frame.count(glyph) for glyph in set(GLYPHS.values())) - 3 * legend
        assert shown == masks
        assert frame.count(GLYPHS["frontier"]) == 1 + (masks > 0)
        assert f"step {step.index} " in frame
        assert f"{24 - masks}/24 tokens" in frame


def test_what_was_committed_since_the_last_frame_stands_out(llada_model):
    picture, steps = picture_of(llada_model)
    picture.watch(steps[0])
    picture.render(80, 24)
    column = (
        int(steps[0].decision.commit[0].nonzero()[0]) + steps[0].window.start
        if steps[0].decision.commit.any()
        else None
    )
    now = [place for place in picture.places[0] if place.endswith("now")]
    assert len(now) == int(steps[0].decision.commit.sum())
    picture.render(80, 24)
    assert not any(place.endswith("now") for place in picture.places[0])
    assert column is None or picture.places[0][column] in ("rule", "forced")


def test_leftovers_and_end_tokens_have_their_own_looks(dream_model):
    picture, steps = picture_of(dream_model, length=12, steps=3, end_tokens="keep", prompts=("the the",))
    for step in steps:
        picture.watch(step)
    frame = "\n".join(drawn(picture))
    if any(step.leftover for step in steps):
        assert "leftover" in picture.places[0]
    assert picture._piece("rule", list(dream_model.info.eos_ids)) == END * len(dream_model.info.eos_ids)
    assert "\x1b" not in frame


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 12), (100, 40)])
def test_a_frame_fits_the_terminal_and_holds_the_frontier(llada_model, width, height):
    picture, steps = picture_of(llada_model, length=400, steps=50, block_length=8)
    for step in steps[: len(steps) // 2]:
        picture.watch(step)
    frame = drawn(picture, width, height)
    assert len(frame) <= height
    assert sum(line.count(GLYPHS["frontier"]) for line in frame[:-2]) == 1  # the legend is last


def test_every_row_of_a_batch_has_its_lines(llada_model):
    picture, steps = picture_of(llada_model, prompts=("hello", "a longer prompt"))
    picture.watch(steps[0])
    frame = "\n".join(drawn(picture))
    assert frame.count(GLYPHS["frontier"]) == 3
    assert "/48 tokens" in frame


def revoking_picture() -> tuple[Picture, list[Step]]:
    canvas, steps = revoking_run()
    cut = plan(canvas.start, 4, steps=4)
    return Picture(canvas, cut, lambda ids: "".join(map(str, ids)), (), "run", canvas.start), steps


def test_a_revoked_token_is_shown_until_it_is_written_again():
    picture, steps = revoking_picture()
    shown = []
    for step in steps:
        picture.watch(step)
        shown.append(drawn(picture))
    cross = GLYPHS["revoked"]
    assert [f"3{GLYPHS['frontier']}{cross}6" in lines[1] for lines in shown] == [False, True, False, False]
    assert "4876" in shown[-1][1]
    assert [f"{cross} revoked" in "\n".join(lines) for lines in shown] == [False, True, True, True]
    assert "rewritten" in "\n".join(shown[-1])
    assert "2 revoked" in "\n".join(shown[-1])
    assert picture.places[0][2:] == ["rewritten", "forced now", "rule", "rule"]


def test_a_token_that_was_revoked_and_written_between_two_frames_is_committed():
    picture, steps = revoking_picture()
    for step in steps:
        picture.watch(step)
    assert GLYPHS["revoked"] not in drawn(picture)[1]
    assert picture.places[0][2:] == ["rewritten now", "forced now", "rule now", "rule now"]


def test_the_mean_of_any_signal_is_shown():
    picture, steps = revoking_picture()
    picture.watch(steps[1])
    frame = "\n".join(drawn(picture))
    for words in ("neatness 0.633", "fuss 0.2", "agrees 67%", "size 8"):  # columns 1, 2 and 3; no infinity
        assert words in frame


def test_frames_are_throttled(monkeypatch):
    clock = iter(index / 100 for index in range(1, 201))  # two seconds, a question every 10 ms
    monkeypatch.setattr(live, "monotonic", lambda: next(clock))
    throttle = Throttle(12)
    assert 20 <= sum(throttle.due() for _ in range(200)) <= 24


@pytest.mark.slow
def test_a_real_conversation_under_a_pseudo_terminal(open_terminal, llada, llada_model):
    from unmask import generate
    from unmask.cli.printable import printable

    terminal = open_terminal("chat", "-m", llada, "-n", 32, "--live")
    terminal.wait_for("> ")
    terminal.type("hello\n")
    terminal.wait_for("finish:")
    terminal.type("and again\n")
    terminal.wait_for("finish:", count=2)
    terminal.type("/exit\n")
    assert terminal.finish() == 0
    assert "unmask · first-mask" in terminal.plain
    assert "0/32 tokens" in terminal.plain
    assert GLYPHS["waiting"] * 10 in terminal.plain
    assert "\x1b[?25h" in terminal.output  # the cursor is back
    [answer] = generate(
        llada_model, [[{"role": "user", "content": "hello"}]], config=GenerationConfig(max_new_tokens=32)
    )
    first_line = printable(answer.text).split("\n")[0].split("\t")[0]
    assert first_line in terminal.plain
    assert f"{answer.steps} steps · {answer.forwards} forwards" in terminal.plain


def test_a_live_run_can_be_interrupted(open_terminal, dream):
    terminal = open_terminal("generate", "-m", dream, "hello", "-n", 6000, "-s", "base", "--live")
    terminal.wait_for("/6000 tokens")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.plain
    assert "\x1b[?25h" in terminal.output


def test_an_interrupt_of_an_evaluation_clears_its_bar_before_it_says_how_to_resume(
    open_terminal, llada, tmp_path
):
    many = ("--limit", 500, "-n", 64, "--batch-size", 1, "--out", tmp_path)
    terminal = open_terminal("eval", "mini-gsm8k", "-m", llada, *many)
    terminal.wait_for(" left")
    terminal.type(b"\x03")
    assert terminal.finish() == 130
    bar, sentence = terminal.output.split("mini-gsm8k was interrupted after ")
    assert bar.endswith("\x1b[2K")  # clears the line
    assert sentence.endswith(f"the same command resumes it in {tmp_path / 'mini-gsm8k'}\r\n")
    assert "━" in bar
    assert "…" not in bar


@pytest.mark.slow
def test_a_terminal_that_does_not_end_in_time_is_killed(open_terminal, dream):
    terminal = open_terminal("generate", "-m", dream, "hello", "-n", 6000, "-s", "base", "--live")
    terminal.wait_for("/6000 tokens")
    with pytest.raises(pytest.fail.Exception, match="did not end"):
        terminal.finish(seconds=0)
    assert terminal.process.returncode == -signal.SIGKILL


def test_progress_shows_nothing_before_its_patience_ends(monkeypatch, capsys):
    with progress.progress("loading") as update:
        update(1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(
        progress, "Console", lambda stderr: Console(stderr=stderr, force_terminal=True, width=80)
    )
    with progress.progress("loading", 10) as update:
        deadline = monotonic() + 1
        while monotonic() < deadline:
            update(4)
    captured = capsys.readouterr()
    assert "loading" in captured.err
    assert "40%" in captured.err
    assert captured.out == ""
