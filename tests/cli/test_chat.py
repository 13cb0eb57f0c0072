"""`unmask chat`: commands, turns, and a real conversation under a pseudo-terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import termios
from time import sleep

import pytest

from unmask import GenerationConfig, generate
from unmask.cli.chat import COMMANDS

EQUATIONS = {
    "Solve the equation: 3x + 5 = 20.": "\\boxed{5}",
    "Solve the equation: 4x + 4 = 20.": "\\boxed{4}",
}


def with_turns(folder, turns: object):
    (folder / "generation_config.json").write_text(json.dumps({"turns": turns}))
    return folder


@pytest.mark.parametrize("turns", [1, 2])
def test_a_model_reads_no_more_questions_than_its_files_say(call, llada, llada_model, copy, turns):
    config, chat, texts = GenerationConfig(max_new_tokens=8, min_new_tokens=8), [], []
    for line in ("hello", "again", "more"):
        chat = [*chat, {"role": "user", "content": line}][1 - 2 * turns :]
        texts.append(generate(llada_model, [chat], config=config)[0].text)
        chat = [*chat, {"role": "assistant", "content": texts[-1]}]
    folder = with_turns(copy(llada), turns)
    result = call("chat", "-m", folder, "-n", 8, "--min-new-tokens", 8, text="hello\nagain\nmore\n")
    assert result.stdout == "".join(f"{text}\n" for text in texts)
    assert "forgotten" in result.stderr


def test_a_model_with_a_wrong_number_of_turns_is_refused(call, llada, copy):
    result = call("chat", "-m", with_turns(copy(llada), 0), text="hello\n")
    assert result.exit_code == 2
    assert "turns" in result.stderr


def test_a_script_goes_on_after_a_command_that_is_none_and_fails_at_its_end(call, llada):
    alone = call("chat", "-m", llada, "-n", 8, text="hello\n")
    result = call("chat", "-m", llada, "-n", 8, text="/rest\nhello\n")
    assert (alone.exit_code, result.exit_code) == (0, 2)
    assert result.stdout == alone.stdout
    assert "'/rest'" in result.stderr
    assert all(name in result.stderr for name in COMMANDS)


def test_input_that_cannot_be_decoded_ends_a_script(llada):
    command = [sys.executable, "-m", "unmask", "chat", "-m", llada, "-n", "8"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, input=b"caf\xe9", env=environment, capture_output=True, timeout=20)
    assert done.returncode == 2
    assert done.stderr.count(b"error: ") == 1


@pytest.mark.parametrize("arguments", ["chat", "infill -"])
def test_a_closed_standard_input_is_answered_with_a_sentence(llada, arguments):
    command = f"{sys.executable} -m unmask {arguments} -m {llada} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_path_is_a_question(call, llada):
    assert call("chat", "-m", llada, "-n", 8, text="/usr/bin holds programs\n").exit_code == 0


def test_the_shipped_model_answers_a_second_question_as_well_as_the_first(open_terminal):
    terminal = open_terminal("chat", "-n", 64)
    terminal.wait_for("mini-llada · first-mask")
    terminal.wait_for("single questions only")
    for turn, (question, answer) in enumerate(EQUATIONS.items(), start=1):
        terminal.wait_for("> ", count=turn)
        terminal.type(f"{question}\n")
        terminal.wait_for("finish:", count=turn)
        assert answer in terminal.plain
    assert "decoding" in terminal.plain  # from the first step
    terminal.wait_for("> ", count=len(EQUATIONS) + 1)
    terminal.type("/exit\n")
    assert terminal.finish() == 0


def test_a_chat_goes_on_after_a_line_that_it_cannot_take(open_terminal, llada, copy):
    folder = copy(llada)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_sequence_length": 64}))
    terminal = open_terminal("chat", "-m", folder, "-n", 8)
    replies = {
        "/foo\n": "/help, /reset, /exit",
        "/help\n": COMMANDS["/reset"],
        "word " * 30 + "\n": "at most 64 tokens",
        b"\xff\xfe\n": "surrogate",
        "hello\n": "finish:",
    }
    for number, (keys, reply) in enumerate(replies.items(), start=1):
        terminal.wait_for("> ", count=number)
        terminal.type(keys)
        terminal.wait_for(reply)
    terminal.wait_for("> ", count=len(replies) + 1)
    terminal.type("/exit\n")
    assert terminal.finish() == 0
    assert "Traceback" not in terminal.plain


def test_an_interrupt_drops_a_half_typed_line_and_an_end_of_file_leaves(open_terminal, llada):
    terminal = open_terminal("chat", "-m", llada, "-n", 8)
    terminal.wait_for("> ")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    sleep(0.5)  # readline sees an interrupt only while it waits for a key
    terminal.type("\x03")
    terminal.wait_for("> ", count=2)
    sleep(0.5)
    terminal.type("\x04")
    assert terminal.finish() == 0


@pytest.mark.parametrize("flags", [(), ("--live",)], ids=["streamed", "live"])
def test_an_interrupt_stops_the_answer_and_not_the_chat(open_terminal, dream, flags):
    terminal = open_terminal("chat", "-m", dream, "-n", 4000, "-s", "base", *flags)
    terminal.wait_for("> ")
    before = termios.tcgetattr(terminal.master)
    terminal.type("hello\n")
    terminal.wait_for("/4000 tokens" if flags else "decoding", count=3)
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for("> ", count=2)
    assert "^C" not in terminal.plain  # it would break the picture
    assert terminal.output.rindex("\x1b[?25h") > terminal.output.rindex("\x1b[?25l")  # the cursor is back
    assert termios.tcgetattr(terminal.master) == before
    terminal.type("/exit\n")
    assert terminal.finish() == 0
