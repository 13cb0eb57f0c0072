"""`unmask eval`, `unmask score` and `unmask compare-runs`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evals.rows import FOLDER
from unmask import LESS, FirstMask, GenerationConfig, make_sampler
from unmask.cli.app import app
from unmask.cli.eval_progress import facts
from unmask.evals import evaluate, get_task
from unmask.evals.compare import compare
from unmask.evals.records import Record, read_lines, to_line
from unmask.evals.run import Progress

ROOT = Path(__file__).parents[2]
MANY = ("--limit", 500, "-n", 64, "--batch-size", 1)
FEW = ("--limit", 4, "-n", 8, "--batch-size", 2)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def check(result, words):
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_eval_does_what_evaluate_does(checkpoint, model, tmp_path):
    options = ("--out", tmp_path / "a", "--set", "min_confidence=0.9")
    result = call("eval", "mini-gsm8k", "-m", checkpoint, *FEW, *options)
    assert result.exit_code == 0, result.stderr
    assert "accuracy, %" in result.stdout
    assert "kept in" in result.stderr
    config = GenerationConfig(max_new_tokens=8)
    sampler = FirstMask(min_confidence=0.9)
    evaluate(model, get_task("mini-gsm8k"), sampler, config, out=tmp_path / "b", limit=4, batch_size=2)
    kept = (tmp_path / "a" / "mini-gsm8k" / "records.jsonl").read_bytes()
    assert kept == (tmp_path / "b" / "records.jsonl").read_bytes()
    first, second = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("a/mini-gsm8k", "b"))
    assert first["configuration"] == second["configuration"]


def test_eval_holds_texts_to_a_form(checkpoint, tmp_path, monkeypatch):
    pytest.importorskip("outlines_core")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    result = call("eval", "mini-mmlu", "-m", checkpoint, *FEW, "--out", tmp_path, "--regex", "[ab]{1,3}")
    assert result.exit_code == 0, result.stderr
    lines = (tmp_path / "mini-mmlu" / "records.jsonl").read_text().splitlines()
    assert all(re.fullmatch("[ab]{1,3}", json.loads(line)["text"]) for line in lines)
    settings = json.loads((tmp_path / "mini-mmlu" / "run.json").read_text())["configuration"]["decoding"]
    assert "[ab]{1,3}" in json.dumps(settings["constraint"])


def test_eval_takes_many_tasks_and_speaks_json(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("eval", "mini-gsm8k", "mini-mmlu", "-m", checkpoint, *FEW, "--json", "-s", "base")
    assert (result.exit_code, result.stderr) == (0, "")
    summaries = [json.loads(line) for line in result.stdout.splitlines()]
    assert [summary["task"] for summary in summaries] == ["mini-gsm8k", "mini-mmlu"]
    assert all(summary["samples"] == 4 for summary in summaries)
    [file] = (tmp_path / "runs" / "llada" / "mini-mmlu").glob("base-*/summary.json")
    assert json.loads(file.read_text())["task"] == "mini-mmlu"


def test_runs_of_other_settings_have_other_folders_and_a_larger_limit_has_the_same(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few = ("eval", "mini-gsm8k", "-m", checkpoint, "--batch-size", 2)
    for more in (("-n", 8, "--limit", 2), ("-n", 8, "--limit", 3), ("-n", 6, "--limit", 2)):
        assert call(*few, *more).exit_code == 0
    assert call(*few, "-n", 8, "--limit", 2, "--set", "min_confidence=0.9").exit_code == 0
    kept = Path("runs/llada/mini-gsm8k")
    counts = [len(read_lines(file, Record)) for file in kept.glob("first-mask-*/records.jsonl")]
    assert sorted(counts) == [2, 2, 3]
    result = call(*few, "-n", 8, "--limit", 2, "--overwrite", "--json")
    assert json.loads(result.stdout)["samples"] == 2
    assert sorted(len(read_lines(file, Record)) for file in kept.glob("*/records.jsonl")) == [2, 2, 2]
    check(call("score", kept), "it has the runs first-mask-")


def test_a_folder_with_one_run_stands_for_it(tmp_path):
    (tmp_path / "model" / "task").mkdir(parents=True)
    file = write(tmp_path / "model" / "task" / "records.jsonl", [record("q/0", True)])
    result = call("compare-runs", tmp_path, file)
    assert "1 sample: 0 lost, 0 gained" in result.stdout


def test_eval_goes_on_or_says_what_differs(checkpoint, tmp_path):
    arguments = ("eval", "mini-gsm8k", "-m", checkpoint, *FEW, "--out", tmp_path)
    first = call(*arguments, "--json")
    again = call(*arguments, "--json")
    assert json.loads(first.stdout) == json.loads(again.stdout)
    check(call(*arguments, "--steps", 4), "decoding.steps = 8, but this one has 4")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gsm9k",), "did you mean 'gsm8k'?"),
        (("mini-gsm8k", "--protocol", "papier"), "protocol must be one of mini, dev, held-out, got 'papier'"),
        (("mini-gsm8k", "--limit", "0"), "limit must be a whole number >= 1"),
        (("mini-gsm8k", "--batch-size", "0"), "batch_size must be a whole number >= 1"),
        (("mini-gsm8k", "--workers", "2"), "--workers needs a cluster"),
        (("mini-gsm8k", "--limit", "2", "-n", "8", "--out", "/dev/null/x"), "Not a directory"),
        (("mini-gsm8k", "-n", "4096"), "sample mini-gsm8k/0: prompts must have"),
    ],
)
def test_bad_input_ends_in_one_sentence(checkpoint, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(call("eval", "-m", checkpoint, *arguments), words)


@pytest.mark.parametrize(
    "command", [("eval", "gsm8k", "--limit", 1), ("reproduce", "headline", "--tasks", "gsm8k", "--limit", 1)]
)
def test_the_data_folder_of_the_environment_is_read(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNMASK_DATA", str(FOLDER))
    check(call(*command), f"{FOLDER / 'gsm8k' / 'test.jsonl'} has 3 rows for this benchmark")


def test_without_the_hubs_library_eval_says_how_to_get_it(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    check(call("eval", "gsm8k", "-m", checkpoint, "--limit", 1), "pip install 'unmask[eval]'")


def test_the_table_of_eval_names_the_model_and_the_sampler(checkpoint, tmp_path):
    arguments = ("-m", checkpoint, *FEW, "-s", "less-paper", "--out", tmp_path)
    result = call("eval", "mini-gsm8k", *arguments)
    assert "less-paper on llada," in " ".join(result.stdout.split())


FULL = """
import resource, signal
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, -1))
from unmask.cli import main
main()
"""


# a parent in the background may ignore SIGINT, and a child inherits that
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from unmask.cli import main
main()
"""


def process(*arguments, code=None):
    start = ["-m", "unmask"] if code is None else ["-c", code]
    command = [sys.executable, *start, *map(str, arguments)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=one_thread, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_disk_without_room_leaves_whole_batches_that_a_run_goes_on_from(checkpoint, tmp_path):
    few = ("--limit", 8, "-n", 16, "--batch-size", 2)
    arguments = ("eval", "mini-gsm8k", "-m", checkpoint, *few, "--out", tmp_path)
    with process(*arguments, code=FULL) as full:
        stdout, stderr = full.communicate(timeout=120)
    file = tmp_path / "mini-gsm8k" / "records.jsonl"
    assert (full.returncode, stdout, stderr) == (2, "", f"error: {file}: File too large\n")
    kept = file.read_bytes()
    assert 0 < kept.count(b"\n") < 8
    assert kept.count(b"\n") % 2 == 0
    assert call(*arguments).exit_code == 0
    assert file.read_bytes().startswith(kept)
    assert file.read_bytes().count(b"\n") == 8


def test_an_interrupt_says_how_to_go_on(checkpoint, tmp_path):
    arguments = ("eval", "mini-gsm8k", "-m", checkpoint, *MANY, "--out", tmp_path)
    file = tmp_path / "mini-gsm8k" / "records.jsonl"
    with process(*arguments, code=INTERRUPTIBLE) as running:
        deadline = time.monotonic() + 60
        while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (130, "")
    assert stderr.startswith("mini-gsm8k was interrupted after ")
    assert f"of 500 samples; the same command resumes it in {tmp_path / 'mini-gsm8k'}\n" in stderr
    assert read_lines(file, Record)


def record(name, correct, *, steps=10, text="a", extracted="1"):
    return Record(
        id=name,
        prompt="",
        text=text,
        extracted=extracted,
        correct=correct,
        also={},
        steps=steps,
        forwards=steps // 2,
        forced_share=0.0,
        leftovers=0,
        tokens=1,
        prompt_tokens=1,
        finish="eos",
    )


def write(path, records):
    path.write_bytes(b"".join(map(to_line, records)))
    return path


@pytest.fixture
def two(tmp_path):
    """Ten samples: A has 0-5 right, B has 1-8; one sample more on each side."""
    first = [record(f"q/{n}", n < 6, steps=20) for n in range(10)] + [record("a", True)]
    second = [record(f"q/{n}", 1 <= n < 9, text="ab"[n % 2]) for n in reversed(range(10))] + [
        record("b", True)
    ]
    return write(tmp_path / "a.jsonl", first), write(tmp_path / "b.jsonl", second)


def test_runs_are_compared_by_hand_checked_numbers(two):
    found = compare(*(read_lines(path, Record) for path in two))
    assert (found.samples, found.only_first, found.only_second) == (10, 1, 1)
    assert found.accuracies == (0.6, 0.8)
    assert found.intervals[1] == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert found.difference == pytest.approx(0.2)
    assert (found.lost, found.gained) == (("q/0",), ("q/6", "q/7", "q/8"))
    assert found.p_value == 2 * (1 + 4) / 16
    assert (found.step_ratio, found.forward_ratio) == (2.0, 2.0)
    assert found.same_texts == 5
    low, high = found.difference_interval
    assert -0.3 < low < 0.2 < high < 0.7


def test_compare_runs_prints_and_lists_flips(two):
    result = call("compare-runs", *two, "--show", 2)
    assert result.exit_code == 0, result.stderr
    for words in (
        "A: 60.00%",
        "B: 80.00%, 95 % interval [49.02, 94.33]",
        "B - A: +20.00 points",
        "p = 0.625",
        "1 lost, 3 gained",
        "2.00x the steps and 2.00x the forwards",
        "1 sample only in A, 1 only in B",
        "lost: q/0",
        "gained: q/6, q/7 and 1 more",
    ):
        assert words in result.stdout
    found = json.loads(call("compare-runs", *two, "--json").stdout)
    assert found["gained"] == ["q/6", "q/7", "q/8"]


def test_compare_runs_says_how_the_runs_differ(model, tmp_path):
    task = get_task("mini-gsm8k")
    config = GenerationConfig(max_new_tokens=8)
    for name, sampler in (("a", LESS()), ("b", make_sampler("less", max_jsd=0.5))):
        evaluate(model, task, sampler, config, out=tmp_path / name, limit=2)
    evaluate(model, get_task("mini-mmlu"), config=config, out=tmp_path / "other", limit=2)
    assert "sampler.max_jsd: 0.04 -> 0.5" in call("compare-runs", tmp_path / "a", tmp_path / "b").stdout
    check(call("compare-runs", tmp_path / "a", tmp_path / "other"), "compare like with like")
    check(call("compare-runs", tmp_path, tmp_path / "b"), "it has the runs a, b, other: name one")
    check(call("compare-runs", tmp_path / "none", tmp_path / "b"), "none: No such file")


def test_compare_runs_names_two_kinds_of_samplers_and_not_all_their_fields(model, tmp_path):
    task = get_task("mini-gsm8k")
    for name, sampler, tokens in (("a", make_sampler("base"), 8), ("b", FirstMask(), 6)):
        config = GenerationConfig(max_new_tokens=tokens)
        evaluate(model, task, sampler, config, out=tmp_path / name, limit=2)
    runs = tmp_path / "a", tmp_path / "b"
    lines = call("compare-runs", *runs).stdout.splitlines()
    assert [line for line in lines if line.startswith("sampler")] == ["sampler: Base -> FirstMask"]
    assert "decoding.max_new_tokens: 8 -> 6" in lines
    assert "sampler.order" in json.loads(call("compare-runs", *runs, "--json").stdout)["configuration"]


def test_runs_without_common_samples_or_with_doubles_are_refused():
    with pytest.raises(ValueError, match="share no sample"):
        compare([record("a", True)], [record("b", True)])
    with pytest.raises(ValueError, match="the second run has the sample b twice"):
        compare([record("b", True)], [record("a", True), record("b", True), record("b", False)])


@pytest.fixture
def scored(tmp_path):
    """Four stored answers to the first problems of mini-gsm8k, with verdicts that are partly wrong."""
    samples = get_task("mini-gsm8k").load(None)[:4]
    values = [sample.meta["item"]["value"] for sample in samples]
    texts = [f"The answer is {value}" for value in (values[0], values[1], values[2] + 1, values[3])]
    read = [str(values[0]), "?", str(values[2] + 1), None]
    rows = zip(samples, texts, (True, True, True, False), read, strict=True)
    return write(
        tmp_path / "records.jsonl",
        [record(one.id, right, text=text, extracted=found) for one, text, right, found in rows],
    )


def test_score_says_what_changed_and_writes_it(scored, tmp_path):
    result = call("score", scored, "--task", "mini-gsm8k", "--out", tmp_path / "new.jsonl")
    assert result.exit_code == 0, result.stderr
    assert "accuracy 75.00% -> 75.00%" in result.stdout
    assert "2 verdicts changed; same verdict but another extracted answer: 1 text\n" in result.stdout
    assert "mini-gsm8k/2: right" in result.stdout
    assert "mini-gsm8k/3: wrong (None) -> right" in result.stdout
    assert "another prompt for 4 texts" in result.stderr  # these records hold no prompt hash
    new = read_lines(tmp_path / "new.jsonl", Record)
    assert [one.correct for one in new] == [True, True, False, True]
    old = read_lines(scored, Record)
    assert [replace(one, correct=True, extracted=None) for one in new] == [
        replace(one, correct=True, extracted=None) for one in old
    ]
    again = call("score", tmp_path / "new.jsonl", "--task", "mini-gsm8k")
    assert "0 verdicts changed\n" in again.stdout


def test_score_knows_the_task_of_a_run(model, tmp_path):
    config = GenerationConfig(max_new_tokens=8)
    evaluate(model, get_task("mini-mmlu"), config=config, out=tmp_path, limit=3)
    result = call("score", tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("mini-mmlu (mini, version 1), 3 samples\n")
    assert "0 verdicts changed\n" in result.stdout


def test_score_names_an_edited_verdict_with_its_line(model, tmp_path):
    evaluate(model, get_task("mini-mmlu"), config=GenerationConfig(max_new_tokens=8), out=tmp_path, limit=3)
    file = tmp_path / "records.jsonl"
    lines = read_lines(file, Record)
    flipped = replace(lines[1], correct=not lines[1].correct)
    file.write_bytes(b"".join(map(to_line, [lines[0], flipped, lines[2]])))
    result = call("score", tmp_path)
    assert "records.jsonl, line 2 was edited" in result.stderr
    assert "1 verdict changed" in result.stdout
    assert lines[1].id in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "has no run.json beside it; name its task with --task"),
        (("--task", "mini-mmlu"), "mini-mmlu has no sample mini-gsm8k/0"),
        (("--task", "mini-gsm8"), "did you mean 'mini-gsm8k'?"),
    ],
)
def test_score_refuses_what_it_cannot_judge(scored, arguments, words):
    check(call("score", scored, *arguments), words)


def test_score_refuses_a_file_without_records(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"id": "torn')
    check(call("score", tmp_path, "--task", "mini-gsm8k"), "holds no complete record")


def test_progress_in_words():
    progress = Progress(done=10, total=40, correct=4, steps=200, forwards=150, resumed=0, seconds=1221.0)
    assert facts(progress) == "accuracy 40.0% · 20.0 steps · 15.0 forwards · 1:01:03 left"
    assert facts(replace(progress, done=0)) == ""
