"""infill, compare, chat and trace."""

from __future__ import annotations

import json
import re

import pytest
from rich.table import Table

from unmask import GenerationConfig, generate, infill, make_sampler
from unmask.cli.compare import NAMES
from unmask.cli.output import print_table
from unmask.cli.picture import END
from unmask.cli.printable import printable
from unmask.trace import read_trace, replay

TEXT = "the [[gap 4]] and [[gap 1-3]]."


def test_infill_says_what_the_library_says(call, lines, llada, llada_model):
    answer = infill(llada_model, TEXT)
    result = call("infill", "-m", llada, TEXT)
    assert result.exit_code == 0
    assert result.stdout == "the " + printable(answer.gaps[0]) + " and " + printable(answer.gaps[1]) + ".\n"
    assert result.stderr.startswith(f"{answer.steps} steps")
    [line] = lines("infill", "-m", llada, "-", text=TEXT)
    assert (line["text"], tuple(line["gaps"]), line["steps"]) == (answer.text, answer.gaps, answer.steps)


def test_an_infilling_can_be_traced(call, llada, llada_model, tmp_path):
    file = tmp_path / "run.jsonl"
    call("infill", "-m", llada, TEXT, "--trace", file, "--steps", 3, "-s", "base")
    answer = infill(llada_model, TEXT, make_sampler("base"), GenerationConfig(steps=3))
    trace = read_trace(file)
    first = trace.header.canvas[0].index(trace.header.mask_id)
    assert tuple(replay(trace)[0][first : first + 4]) == answer.gap_ids[0]


def test_infill_refuses_a_text_without_a_gap(call, llada):
    for text in ("no gap here", "half a [[gap"):
        result = call("infill", "-m", llada, text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "[[gap 8]]" in result.stderr


def test_infill_shows_a_gap_of_no_token_as_it_was_written(call, llada):
    result = call("infill", "-m", llada, "a [[gap 0]] b")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "got '[[gap 0]]'" in result.stderr


def test_compare_shows_every_sampler_in_order(call, dream):
    result = call("compare", "-m", dream, "hello", "-n", 8)
    assert result.exit_code == 0
    names = NAMES.split(",")
    rows = [line.split()[1] for line in result.stdout.splitlines() if len(line.split()) > 2]
    assert [row for row in rows if row in names] == names
    assert len(re.findall(r"^│ \d+ steps ", result.stdout, re.MULTILINE)) == len(names)
    assert re.search(r"first-mask took \d+ forwards where base took \d+: ", result.stdout)


@pytest.mark.parametrize("flags", [("-s", "less,base"), ("-s", "less", "-s", "base"), ("-s", "base,less")])
def test_compare_compares_with_base_wherever_it_stands(call, lines, flags):
    ask = ("compare", "Simplify 6/8.", "-n", 8, *flags, "--repeat", 2)
    found = {line["sampler"]: line for line in lines(*ask)}
    base, less = found["base"], found["less"]
    assert list(found) == ",".join(name for name in flags if name != "-s").split(",")
    assert base["fewer_forwards"] == base["speedup"] == 1
    assert less["fewer_forwards"] == base["forwards"] / less["forwards"] > 1
    shown = " ".join(call(*ask).stdout.split())
    times = f"{less['fewer_forwards']:.1f} times fewer"
    assert f"less took {less['forwards']} forwards where base took {base['forwards']}: {times}" in shown
    assert f"{times} forwards" in shown
    assert shown.count(" to ") == 2 + 2  # the range of the seconds, in the table and in the sentence


def test_compare_without_base_compares_with_the_first_and_says_so(call, lines, dream):
    ask = ("compare", "-m", dream, "hello", "-n", 8, "-s", "threshold,less", "--repeat", 1)
    assert {line["baseline"] for line in lines(*ask)} == {"threshold"}
    shown = call(*ask).stdout
    assert "where threshold took" in shown
    assert "base is not in the list" in shown
    assert " to " not in shown  # one run has no range


def test_compare_times_every_sampler_as_often_as_it_is_told(lines, dream):
    for line in lines("compare", "-m", dream, "hello", "-n", 4, "-s", "base,less", "--repeat", 3):
        assert len(line["runs"]) == 3
        assert line["seconds"] == sorted(line["runs"])[1]


@pytest.mark.slow
def test_compare_judges_the_answers_to_items_of_tasks(call, lines):
    ask = ("compare", "--task", "mini-math,mini-winogrande", "--item", 3, "--samplers", "threshold,less")
    ask = (*ask, "--repeat", 1)
    found = lines(*ask)
    assert [line["sampler"] for line in found] == ["threshold", "less"] * 2
    assert all(isinstance(line["correct"], bool) for line in found)
    shown = call(*ask).stdout
    assert shown.count("correct") == sum(line["correct"] for line in found)
    assert re.search(r"right answers: less \d of 2, threshold \d of 2\.", " ".join(shown.split()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either a PROMPT or --task"),
        (("hi", "--task", "mini-math"), "either a PROMPT or --task"),
        (("--task", "mini-maths"), "did you mean 'mini-math'"),
        (("--task", "mini-math", "--item", 500), "--item must be below 500"),
    ],
)
def test_compare_refuses_what_it_cannot_ask(call, arguments, words):
    result = call("compare", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr.replace("\n", " ")


def test_compare_speaks_json(lines, dream, dream_model):
    found = lines("compare", "-m", dream, "hello", "-n", 8, "--samplers", "base,less")
    assert [line["sampler"] for line in found] == ["base", "less"]
    assert found[0]["speedup"] == 1
    assert found[1]["speedup"] == pytest.approx(found[0]["seconds"] / found[1]["seconds"])
    prompt = [{"role": "user", "content": "hello"}]
    for line in found:
        [answer] = generate(
            dream_model, [prompt], make_sampler(line["sampler"]), GenerationConfig(max_new_tokens=8)
        )
        assert (line["text"], line["steps"], line["forwards"]) == (answer.text, answer.steps, answer.forwards)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("base,les", "did you mean 'less'"),
        (",", "names none"),
        ("base,less, base", "names 'base' twice"),
        ("klass", "whole generation"),
    ],
)
def test_compare_refuses_samplers_before_it_runs_any(call, llada, names, words):
    result = call("compare", "-m", llada, "hello", "--samplers", names, "--cache", "dual")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_chat_remembers_until_it_is_reset(call, llada, llada_model):
    config = GenerationConfig(max_new_tokens=8, min_new_tokens=8)

    def ask(*messages: str) -> str:
        roles = ["system"] + ["user", "assistant"] * len(messages)
        chat = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
        return generate(llada_model, [chat], config=config)[0].text

    first = ask("be brief", "hello")
    second = ask("be brief", "hello", first, "again")
    typed = "hello\n\nagain\n/reset\nhello\n/exit\nnever read\n"
    result = call("chat", "-m", llada, "-n", 8, "--min-new-tokens", 8, "--system", "be brief", text=typed)
    assert result.exit_code == 0
    assert result.stdout == "".join(f"{text}\n" for text in (first, second, first))
    assert first != second


def test_a_chat_says_once_that_there_is_no_terminal_to_live_in(call, llada):
    plain = call("chat", "-m", llada, "-n", 8, text="hello\nagain\n")
    live = call("chat", "-m", llada, "-n", 8, "--live", text="hello\nagain\n")
    assert live.stdout == plain.stdout
    assert live.stderr.count("--live is ignored") == 1


def test_a_chat_ends_with_its_input_and_refuses_what_does_not_fit(call, llada):
    assert call("chat", "-m", llada, text="").exit_code == 0
    result = call("chat", "-m", llada, "-n", 4096, text="hello\n")
    assert result.exit_code == 2
    assert "at most 4096" in result.stderr


def test_trace_sums_up_and_writes_a_page(call, llada, tmp_path):
    file, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    call("generate", "-m", llada, "hello", "more of it", "-n", 8, "--trace", file, "-s", "less-paper")
    result = call("trace", file, "--html", page)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"less-paper on {llada}, unmask ")
    assert "patience=2" in result.stdout
    assert "text 1: " in result.stdout
    assert "text 2: " in result.stdout
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_table_of_a_trace_fits_80_columns(call, llada, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "run.jsonl"
    call("generate", "-m", llada, "hello", "-n", 8, "--trace", file)
    result = call("trace", file)
    words = "text steps forwards rule forced leftover revoked steps steps"
    assert words in [" ".join(line.split()) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("columns", [80, 60, 20])
def test_a_table_too_wide_for_the_terminal_is_folded_and_never_cut(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = Table("name", "text")
    table.columns[0].no_wrap = True
    table.add_row("n" * 30, "0.020/0.072/0.1" * 8)
    print_table(table)
    drawn = capsys.readouterr().out
    assert max(map(len, drawn.splitlines())) <= columns
    assert drawn.count("n") == 30 + len("n")  # of the header
    assert drawn.count("/") == 16
    assert drawn.count("2") == 16


def test_trace_says_where_two_runs_part(call, tmp_path):
    files = {name: tmp_path / f"{name}.jsonl" for name in ("base", "less-persistence-only")}
    for name, file in files.items():
        call("generate", "Simplify 6/8.", "-n", 32, "-s", name, "--trace", file)
    traces = [read_trace(file) for file in files.values()]
    start = traces[0].header.start
    texts = [[trace.texts[str(token)] for token in replay(trace)[0][start:]] for trace in traces]
    place = next(index for index in range(32) if texts[0][index] != texts[1][index])
    result = call("trace", *files.values())
    [parting] = [line for line in result.stdout.splitlines() if "they part" in line]
    assert f"position {place + 1}: base wrote {texts[0][place]!r} in step " in parting
    assert f"less-persistence-only wrote {texts[1][place]!r} in step " in parting
    assert f"{sum(left != right for left, right in zip(*texts, strict=True))} differences" in parting
    same = call("trace", files["base"], files["base"]).stdout
    assert "the same tokens" in same
    assert "they part" not in same


def test_trace_shows_a_run_of_end_tokens_as_one_mark(call, tmp_path):
    file = tmp_path / "run.jsonl"
    result = call("generate", "Simplify 6/8.", "-n", 48, "--trace", file)
    shown = call("trace", file).stdout
    assert shown.endswith(f"{result.stdout.rstrip()}{END}\n")
    assert "endoftext" not in shown


def test_trace_refuses_what_is_no_trace(call, tmp_path):
    (tmp_path / "run.jsonl").write_text("hello\n")
    for name, words in (("run.jsonl", "not valid JSON"), ("none.jsonl", "No such file")):
        result = call("trace", tmp_path / name)
        assert result.exit_code == 2
        assert words in result.stderr
        assert name in result.stderr


def test_trace_never_writes_over_what_it_reads(call, llada, tmp_path):
    first, second, link = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "link.html"
    for file in (first, second):
        call("generate", "-m", llada, "hello", "-n", 8, "--trace", file)
    link.symlink_to(second)
    before = first.read_bytes()
    for arguments in ((first, "--html", first), (first, second, "--html", second), (second, "--html", link)):
        result = call("trace", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--html must name another file than the traces" in result.stderr
    assert first.read_bytes() == second.read_bytes() == before


def test_trace_says_that_a_file_is_incomplete(call, llada, tmp_path):
    file = tmp_path / "run.jsonl"
    call("generate", "-m", llada, "hello", "-n", 8, "--trace", file)
    assert call("trace", file).stderr == ""
    lines = file.read_bytes().splitlines(keepends=True)
    for left in (lines[:1], lines[:3], [*lines[:-2], lines[-2][:20]]):
        file.write_bytes(b"".join(left))
        result = call("trace", file)
        assert result.exit_code == 0
        assert f"{file} is incomplete" in result.stderr


def test_what_looks_like_markup_is_only_text(call, dream, tmp_path, monkeypatch):
    from unmask.models.text.tokens import Tokenizer

    monkeypatch.setattr(
        Tokenizer, "decode", lambda self, ids, skip_special=True: "[bold]x[/nothing]" * len(ids)
    )
    result = call("compare", "-m", dream, "[/red] hello", "-n", 4, "--samplers", "less")
    assert result.exit_code == 0
    assert "[/red] hello" in result.stdout
    assert "[bold]x[/nothing]" in result.stdout


def test_control_characters_never_reach_a_terminal():
    assert printable("a\x1b[31mb\x07\x9b\n\tc") == "a\\x1b[31mb\\x07\\x9b\n\tc"


def test_a_run_that_is_refused_leaves_an_older_trace_alone(call, llada, tmp_path):
    file = tmp_path / "t.jsonl"
    words = ("generate", "-m", llada, "hello", "-n", 8, "--trace", file)
    assert call(*words).exit_code == 0
    before = file.read_bytes()
    assert call(*words, "-s", "prophet", "--set", "answer_start=400").exit_code == 2
    assert file.read_bytes() == before


def test_tasks_and_experiments_are_listed_with_a_sentence(call):
    from unmask.catalog import EXPERIMENTS, TASKS

    words = call("tasks").stdout
    for name in (*TASKS, *EXPERIMENTS):
        assert name in words
    listed = json.loads(call("tasks", "--json").stdout)
    assert listed["tasks"]["gsm8k"]["items"] == 1319
    assert listed["experiments"] == EXPERIMENTS
    experiments = call("reproduce", "--list")
    assert experiments.exit_code == 0
    assert all(name in experiments.stdout for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("generate", ["Forced", "forward"]),
        ("chat", ["Forced", "forward"]),
        ("eval", ["Forced"]),
        ("trace", ["Forced", "Empty steps"]),
        ("reproduce", ["JSD", "c is", "Forced share"]),
    ],
)
def test_the_help_of_a_command_explains_the_words_that_it_prints(call, command, words):
    text = call(command, "--help").stdout
    assert all(word in text for word in words)
