"""The log of `unmask serve`: for people at a terminal, JSON for programs."""

from __future__ import annotations

import json
import logging
import re

import pytest

pytest.importorskip("uvicorn")

from unmask.serving.logs import PlainLines


def test_a_terminal_shows_the_url_on_a_line_of_its_own(open_terminal, llada):
    terminal = open_terminal("serve", llada, "--port", 0)
    terminal.wait_for("Ctrl-C")
    assert re.search(r"^ *http://127\.0\.0\.1:\d+$", terminal.plain, re.MULTILINE)
    assert "{" not in terminal.plain
    terminal.type("\x03")
    assert terminal.finish() == 0


def test_a_terminal_shows_json_lines_if_told(open_terminal, llada):
    terminal = open_terminal("serve", llada, "--port", 0, "--log-json")
    terminal.wait_for("http://")
    terminal.wait_for("\n", count=2)
    lines = [json.loads(line) for line in terminal.plain.splitlines()[:2]]
    assert lines[-1]["url"].startswith("http://127.0.0.1:")


def test_control_characters_of_a_request_never_reach_the_terminal():
    try:
        raise ValueError("\x1b[31mred")
    except ValueError as error:
        told = (type(error), error, error.__traceback__)
    record = logging.LogRecord("unmask", logging.ERROR, "", 1, "failed \x9b", None, told)
    record.prompt = "a\x1b[2Jb\x07"
    shown = PlainLines().format(record)
    assert "failed" in shown
    assert "ValueError" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}
