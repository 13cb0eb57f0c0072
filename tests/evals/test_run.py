"""Runs in one process: what is kept, what is summed up, what is refused."""

from __future__ import annotations

import fcntl
import json
import resource
import shutil
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.evals.conftest import PARITY, SHORT, ask, parity
from tests.raises import raises_field
from unmask import LESS, EndLast, GenerationConfig, compile, generate, make_sampler
from unmask.cli.app import app
from unmask.evals import Sample, evaluate, get_task
from unmask.evals.fingerprint import fingerprint
from unmask.evals.folder import append
from unmask.evals.records import Record, Timing, read_lines
from unmask.evals.run import Progress
from unmask.models import load

SIZE = 3


def records_of(out):
    return read_lines(out / "records.jsonl", Record)


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    evaluate(model, PARITY, out=out, batch_size=SIZE)
    return out


@pytest.fixture
def whole(undisturbed, tmp_path):
    """The folder of a run that nobody disturbed; a copy that a test may spoil."""
    return shutil.copytree(undisturbed, tmp_path / "whole")


def test_a_record_says_what_generate_says(model, task, whole):
    samples = {sample.id: sample for sample in ask(None)}
    kept = records_of(whole)
    answers = generate(model, [samples[record.id].prompt for record in kept], config=SHORT)
    assert sorted(samples) == sorted(record.id for record in kept)
    for record, answer in zip(kept, answers, strict=True):
        assert (record.text, record.finish) == (answer.text, answer.finish)
        assert (record.steps, record.forwards) == (answer.steps, answer.forwards)
        assert (record.tokens, record.prompt_tokens) == (len(answer.token_ids), answer.prompt_tokens)
        assert (record.forced_share, record.leftovers) == (answer.forced_share, answer.leftovers)
        [verdict] = parity([samples[record.id]], [record.text])
        assert (record.correct, record.extracted) == (verdict.correct, verdict.extracted)
        assert record.also == verdict.also


def test_short_prompts_come_first_and_ties_go_by_id(whole):
    order = [(record.prompt_tokens, record.id) for record in records_of(whole)]
    assert order == sorted(order)


def test_the_records_depend_neither_on_the_run_nor_on_the_batch_size(model, task, whole, tmp_path):
    for size in (1, SIZE, 64):
        evaluate(model, task, out=tmp_path / str(size), batch_size=size)
        again = tmp_path / str(size) / "records.jsonl"
        assert again.read_bytes() == (whole / "records.jsonl").read_bytes()


def test_a_summary_sums_up_its_records(model, task, tmp_path):
    summary = evaluate(model, task, out=tmp_path, batch_size=SIZE)
    kept = records_of(tmp_path)
    assert summary.samples == len(kept) == 14
    assert summary.correct == sum(record.correct for record in kept)
    assert 0 < summary.correct < 14
    assert summary.also == {"odd": pytest.approx(1 - summary.accuracy)}
    assert summary.interval[0] < summary.accuracy < summary.interval[1]
    assert summary.mean_steps == pytest.approx(sum(record.steps for record in kept) / 14)
    assert summary.tokens_per_forward == sum(r.tokens for r in kept) / sum(r.forwards for r in kept)
    timings = read_lines(tmp_path / "timings.jsonl", Timing)
    assert [timing.rows for timing in timings] == [3, 3, 3, 3, 2]
    assert summary.decode_seconds == sum(timing.seconds for timing in timings)
    assert 0 < summary.p50_seconds <= summary.p95_seconds <= summary.wall_seconds
    assert 10**7 < summary.peak_memory < 10**12
    stored = json.loads((tmp_path / "summary.json").read_text())
    assert stored["accuracy"] == summary.accuracy
    assert stored["configuration"] == json.loads((tmp_path / "run.json").read_text())["configuration"]
    assert stored["environment"]["python"] == sys.version.split()[0]


def test_without_a_folder_nothing_is_written_and_the_numbers_are_the_same(
    model, task, whole, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    summary = evaluate(model, task, batch_size=SIZE)
    assert set(tmp_path.iterdir()) == before
    stored = json.loads((whole / "summary.json").read_text())
    for name in ("accuracy", "mean_steps", "median_steps", "mean_forwards", "forced_share", "configuration"):
        assert getattr(summary, name) == stored[name]


def test_the_task_says_how_long_and_where_texts_end(model, task):
    ended = evaluate(model, replace(task, max_new_tokens=5, stop=("e", "m"))).configuration["decoding"]
    assert (ended["max_new_tokens"], ended["steps"], ended["stop"]) == (5, 5, ["e", "m"])
    assert ended["block_length"] == 5  # the family's 64, on a canvas of 5
    given = evaluate(model, task, config=GenerationConfig(max_new_tokens=6, block_length=3), limit=2)
    assert given.configuration["decoding"]["block_length"] == 3


def test_progress_is_told_after_every_batch(model, task, whole):
    told: list[Progress] = []
    summary = evaluate(model, task, batch_size=SIZE, progress=told.append)
    assert [one.done for one in told] == [0, 3, 6, 9, 12, 14]
    assert told[0].seconds_left is None
    assert told[-1].seconds_left == 0
    assert told[-1].correct == summary.correct
    resumed: list[Progress] = []
    evaluate(model, task, out=whole, batch_size=SIZE, progress=resumed.append)
    assert [(one.done, one.resumed) for one in resumed] == [(14, 14)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), ahead=st.integers(0, 1), junk=st.sampled_from([b"", b'{"id": "q', b"\xff\x00"]))
def test_a_run_cut_anywhere_ends_as_if_undisturbed(model, task, whole, tmp_path_factory, share, ahead, junk):
    """Timings are written first, so a killed run has those of the batches in its records, or one more."""
    out = tmp_path_factory.mktemp("cut")
    (out / "run.json").write_bytes((whole / "run.json").read_bytes())
    content = (whole / "records.jsonl").read_bytes()
    kept = content[: int(share * len(content))]
    done = min(5, kept.count(b"\n") // SIZE + (kept.count(b"\n") == 14) + ahead)
    times = (whole / "timings.jsonl").read_bytes().splitlines(keepends=True)
    (out / "records.jsonl").write_bytes(kept + junk)
    (out / "timings.jsonl").write_bytes(b"".join(times[:done]) + junk)
    evaluate(model, task, out=out, batch_size=SIZE)
    assert (out / "records.jsonl").read_bytes() == content
    assert [timing.batch for timing in read_lines(out / "timings.jsonl", Timing)] == [0, 1, 2, 3, 4]


def test_what_is_done_is_not_decoded_again(model, counted, whole):
    task, asked = counted
    lines = (whole / "records.jsonl").read_bytes().splitlines(keepends=True)
    (whole / "records.jsonl").write_bytes(b"".join(lines[:10]))
    evaluate(model, task, out=whole, batch_size=SIZE)
    assert sum(asked.values()) == 14 - 9
    assert (whole / "records.jsonl").read_bytes() == b"".join(lines)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampler": make_sampler("first-mask", window=2)}, r"sampler.window = 1, but this one has 2"),
        (
            {"sampler": make_sampler("base")},
            r"sampler.kind = 'FirstMask', but this one has 'Base' \(and \d+ ",
        ),
        ({"config": GenerationConfig(max_new_tokens=8, temperature=0.5)}, "decoding.temperature = 0.0"),
        ({"batch_size": 4}, "batch_size = 3, but this one has 4"),
    ],
)
def test_another_configuration_is_refused_by_the_field_that_differs(model, task, whole, change, words):
    before = (whole / "records.jsonl").read_bytes()
    with pytest.raises(ValueError, match=words):
        evaluate(model, task, out=whole, **{"batch_size": SIZE, **change})
    assert (whole / "records.jsonl").read_bytes() == before


def test_a_refusal_names_the_options_that_help(model, task, whole):
    with pytest.raises(ValueError, match=r"--out.*--overwrite"):
        evaluate(model, task, out=whole, batch_size=4)


@pytest.fixture
def counted(task):
    """The task, and how often each of its samples was judged."""
    asked: Counter[str] = Counter()

    def counting(samples, texts):
        asked.update(sample.id for sample in samples)
        return parity(samples, texts)

    return replace(task, score=counting), asked


def by_id(out):
    return {record.id: record for record in records_of(out)}


def test_a_larger_limit_adds_to_what_is_done(model, counted, whole, tmp_path):
    task, asked = counted
    for limit in (5, 7, None):
        summary = evaluate(model, task, out=tmp_path / "grown", batch_size=SIZE, limit=limit)
    assert asked == Counter(sample.id for sample in ask(None))  # each once
    assert by_id(tmp_path / "grown") == by_id(whole)
    stored = json.loads((whole / "summary.json").read_text())
    for name in ("samples", "accuracy", "mean_steps", "forced_share", "configuration"):
        assert getattr(summary, name) == stored[name]
    assert (
        json.loads((tmp_path / "grown" / "run.json").read_text())["configuration"] == stored["configuration"]
    )


def test_a_smaller_limit_reads_what_is_there(model, counted, whole):
    task, asked = counted
    before = {file.name: file.read_bytes() for file in whole.iterdir()}
    told: list[Progress] = []
    summary = evaluate(model, task, out=whole, batch_size=SIZE, limit=4, progress=told.append)
    assert {file.name: file.read_bytes() for file in whole.iterdir()} == before
    assert not asked
    first = [by_id(whole)[sample.id] for sample in ask(None)[:4]]
    assert (summary.samples, summary.correct) == (4, sum(record.correct for record in first))
    assert summary.mean_steps == sum(record.steps for record in first) / 4
    assert 0 < summary.decode_seconds < json.loads(before["summary.json"])["decode_seconds"]
    assert summary.configuration == evaluate(model, task, batch_size=SIZE, limit=4).configuration
    assert [(one.done, one.total) for one in told] == [(4, 4)]


def test_a_smaller_limit_decodes_only_what_a_killed_run_lacks(model, counted, whole):
    task, asked = counted
    lines = (whole / "records.jsonl").read_bytes().splitlines(keepends=True)
    (whole / "records.jsonl").write_bytes(b"".join(lines[:6]))
    done = set(by_id(whole))
    evaluate(model, task, out=whole, batch_size=SIZE, limit=8)
    assert asked == Counter({f"q/{n}" for n in range(8)} - done)
    assert evaluate(model, task, out=whole, batch_size=SIZE).samples == 14
    assert max(asked.values()) == 1


@pytest.mark.parametrize("limit", [4, 14])
def test_a_run_of_other_data_is_neither_read_nor_added_to(model, task, limit, tmp_path):
    def load(folder):
        return [replace(one, gold=one.gold + 1) if one.id == "q/2" else one for one in ask(folder)]

    evaluate(model, task, out=tmp_path, limit=9)
    with pytest.raises(ValueError, match=r"task\.data"):
        evaluate(model, replace(task, load=load), out=tmp_path, limit=limit)


def test_overwriting_starts_anew(model, counted, whole):
    task, asked = counted
    with pytest.raises(ValueError, match="batch_size = 3"):
        evaluate(model, task, out=whole, batch_size=4)
    evaluate(model, task, out=whole, batch_size=4, limit=6, overwrite=True)
    assert set(by_id(whole)) == set(asked) == {f"q/{n}" for n in range(6)}


def test_a_run_stored_before_a_field_was_added_is_resumed(model, task, tmp_path):
    run = partial(evaluate, model, task, out=tmp_path, batch_size=SIZE)
    run(LESS())
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert "fallback" not in manifest["configuration"]["sampler"]
    assert "min_gap" not in manifest["configuration"]["decoding"]
    run(LESS())
    with pytest.raises(ValueError, match=r"sampler.fallback = None, but this one has 'first'"):
        run(LESS(fallback="first"))
    with pytest.raises(ValueError, match=r"sampler.kind = 'LESS', but this one has 'EndLast\(LESS\)'"):
        run(EndLast(LESS()))


def test_another_model_task_or_data_is_refused(checkpoint, model, task, whole):
    touched = load(checkpoint, device="cpu")
    touched.embed.weight[3, 4] += 1e-3
    changed = replace(task, load=lambda folder: [replace(one, gold=one.gold + 1) for one in ask(folder)])
    for args, words in (
        ((touched, task), "model.fingerprint"),
        ((model, replace(task, version=2)), "task.version = 1, but this one has 2"),
        ((model, changed), "task.data"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate(*args, out=whole, batch_size=SIZE)


def test_a_compiled_model_has_the_same_fingerprint_but_is_another_run(checkpoint, model, task, whole):
    compiled = compile(load(checkpoint, device="cpu"), layers=False)
    assert fingerprint(compiled) == fingerprint(model)
    with pytest.raises(ValueError, match=r"model.compile = False, but this one has True; "):
        evaluate(compiled, task, out=whole, batch_size=SIZE)


def test_a_fingerprint_sees_every_weight_and_nothing_else(checkpoint, model):
    assert fingerprint(load(checkpoint, device="cpu")) == fingerprint(model)
    assert fingerprint(load(checkpoint, device="cpu", dtype="bfloat16")) != fingerprint(model)
    swapped = load(checkpoint, device="cpu")
    weight = swapped.layers[0].mlp.up.weight
    weight[:] = torch.flip(weight, (0,))  # the same numbers in other places
    assert fingerprint(swapped) != fingerprint(model)


def spoil(folder, name, line, content):
    path = folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:line], content, *lines[line + 1 :]]))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("records.jsonl", b"{]\n", r"records.jsonl, line 3 is not valid JSON"),
        (
            "records.jsonl",
            b'{"id": "q/1"}\n',
            r"records.jsonl, line 3 is not a record .* unknown: also, correct",
        ),
        ("timings.jsonl", b"7\n", r"timings.jsonl, line 3 is not a timing"),
    ],
)
def test_a_spoilt_line_is_named(model, task, whole, name, content, words):
    spoil(whole, name, 2, content)
    with pytest.raises(ValueError, match=words):
        evaluate(model, task, out=whole, batch_size=SIZE)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("records.jsonl", "id", 7),
        ("records.jsonl", "text", None),
        ("records.jsonl", "extracted", ["5"]),
        ("records.jsonl", "correct", "false"),
        ("records.jsonl", "correct", 1),
        ("records.jsonl", "also", {"odd": 1}),
        ("records.jsonl", "also", [True]),
        ("records.jsonl", "steps", -1),
        ("records.jsonl", "forwards", 2.5),
        ("records.jsonl", "tokens", True),
        ("records.jsonl", "forced_share", float("nan")),
        ("timings.jsonl", "seconds", "1"),
        ("timings.jsonl", "wall", float("inf")),
        ("timings.jsonl", "hashes", "abc"),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_its_file_and_line(model, task, whole, name, field, value):
    edit(whole / name, 2, **{field: value})
    with raises_field(field, value, f"{whole / name}, line 3"):
        evaluate(model, task, out=whole, batch_size=SIZE)


def edit(path, line, **fields):
    """Change fields of a line, counted from 0."""
    content = json.loads(path.read_bytes().splitlines()[line])
    spoil(path.parent, path.name, line, json.dumps({**content, **fields}).encode() + b"\n")


def test_an_edited_verdict_is_named_with_its_file_and_line(model, task, whole):
    [first, *_] = [n for n, one in enumerate(read_lines(whole / "records.jsonl", Record)) if not one.correct]
    edit(whole / "records.jsonl", first, correct=True)
    before = (whole / "records.jsonl").read_bytes()
    with pytest.raises(ValueError, match=rf"records.jsonl, line {first + 1} was edited"):
        evaluate(model, task, out=whole, batch_size=SIZE)
    assert (whole / "records.jsonl").read_bytes() == before
    for command in (("compare-runs", whole, whole), ("compare-runs", whole, whole, "--json")):
        result = CliRunner().invoke(app, [str(word) for word in command])
        assert result.exit_code == 0
        assert f"records.jsonl, line {first + 1} was edited" in result.stderr


def test_a_run_of_an_older_version_has_no_hashes_and_goes_on(model, task, whole):
    content = (whole / "records.jsonl").read_bytes()
    for line in range(5):
        edit(whole / "timings.jsonl", line, hashes=[])
    lines = content.splitlines(keepends=True)
    (whole / "records.jsonl").write_bytes(b"".join(lines[:7]))
    evaluate(model, task, out=whole, batch_size=SIZE)
    assert (whole / "records.jsonl").read_bytes() == content


def test_a_batch_of_another_size_is_named_with_its_line(model, task, whole):
    edit(whole / "timings.jsonl", 1, rows=10**12)
    with pytest.raises(ValueError, match=r"timings.jsonl, line 2"):
        evaluate(model, task, out=whole, batch_size=SIZE)


@pytest.mark.parametrize(
    "content",
    [
        '{"configuration": 5, "environment": {}}',
        '{"configuration": {"task": 3}, "environment": {}}',
        '{"configuration": {"task": {}}, "environment": {}}',
        '{"configuration": ' + '{"a":' * 100_000,
        '{"environment": {}, "configuration": ' + '{"a":' * 900 + "1" + "}" * 901,
    ],
)
def test_a_spoilt_manifest_is_named(model, task, whole, content):
    (whole / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"is not the run.json of a run"):
        evaluate(model, task, out=whole, batch_size=SIZE)


def test_deep_json_in_a_record_is_named_with_its_line(model, task, whole):
    spoil(whole, "records.jsonl", 2, b'{"id":' + b"[" * 100_000 + b"\n")
    with pytest.raises(ValueError, match=r"records.jsonl, line 3 is not valid JSON"):
        evaluate(model, task, out=whole, batch_size=SIZE)


def test_records_in_another_order_are_refused(model, task, whole):
    lines = (whole / "records.jsonl").read_bytes().splitlines(keepends=True)
    (whole / "records.jsonl").write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(ValueError, match=r"records.jsonl, line 1 was edited"):
        evaluate(model, task, out=whole, batch_size=SIZE)


def test_a_folder_that_lost_a_file_is_refused(model, task, whole):
    (whole / "timings.jsonl").unlink()
    with pytest.raises(ValueError, match=r"timings.jsonl has 0 samples, but records.jsonl has 14"):
        evaluate(model, task, out=whole, batch_size=SIZE)
    (whole / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not the run.json of a run"):
        evaluate(model, task, out=whole, batch_size=SIZE)
    (whole / "run.json").unlink()
    with pytest.raises(ValueError, match=r"holds records but no run.json"):
        evaluate(model, task, out=whole, batch_size=SIZE)


def test_a_folder_belongs_to_one_process_at_a_time(model, task, whole):
    with (whole / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is in use by another process"):
            evaluate(model, task, out=whole, batch_size=SIZE)
    evaluate(model, task, out=whole, batch_size=SIZE)


def test_a_scorer_that_fails_is_told_by_its_sample_and_earlier_batches_stay(model, task, tmp_path):
    def failing(samples, texts):
        if any(sample.id == "q/6" for sample in samples):
            raise KeyError("tests")
        return parity(samples, texts)

    with pytest.raises(ValueError, match="scoring sample q/6 of parity failed: KeyError: 'tests'"):
        evaluate(model, replace(task, score=failing), out=tmp_path, batch_size=SIZE)
    kept = len(records_of(tmp_path))
    assert kept % SIZE == 0
    evaluate(model, task, out=tmp_path, batch_size=SIZE)
    assert len(records_of(tmp_path)) == 14 > kept


def test_a_scorer_that_fails_only_on_many_or_forgets_some_is_told_by_its_batch(model, task):
    def together(samples, texts):
        if len(samples) > 1:
            raise RuntimeError("too many")
        return parity(samples, texts)

    with pytest.raises(
        ValueError, match=r"scoring the 3 samples from q/\d+ to q/\d+ failed: RuntimeError: too"
    ):
        evaluate(model, replace(task, score=together), batch_size=SIZE)
    with pytest.raises(ValueError, match="gave 0 verdicts for the 3 samples"):
        evaluate(model, replace(task, score=lambda samples, texts: []), batch_size=SIZE)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([], "parity has no samples"),
        ([Sample("a", "x", 1), Sample("a", "y", 2)], "has the sample a twice"),
        ([Sample("a", "x", 1), Sample("b", "", 2)], "sample b: prompts must have at least one token"),
        ([Sample("long", "x " * 5000, 1)], "sample long: prompts must have at most 4096"),
    ],
)
def test_samples_that_cannot_be_asked_are_named(model, task, samples, words):
    with pytest.raises(ValueError, match=words):
        evaluate(model, replace(task, load=lambda folder: samples))


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"limit": 0}, "limit", 0),
        ({"batch_size": 0}, "batch_size", 0),
        ({"config": GenerationConfig(seed=(1, 2))}, "seed", (1, 2)),
        ({"sampler": LESS}, "sampler", LESS),
    ],
)
def test_settings_out_of_range_are_refused(model, task, settings, field, value):
    with raises_field(field, value):
        evaluate(model, task, **settings)


def test_names_in_the_place_of_objects_are_refused(model, task):
    with raises_field("model", "mini-llada", "unmask.load('mini-llada')"):
        evaluate("mini-llada", task)
    with raises_field("task", "mini-math", "get_task('mini-math')"):
        evaluate(model, "mini-math")


def test_a_seed_gives_the_same_records_in_any_batch(model, task, tmp_path):
    config = GenerationConfig(max_new_tokens=8, temperature=0.7, seed=5)
    for size in (2, 5):
        evaluate(model, task, make_sampler("base"), config, out=tmp_path / str(size), batch_size=size)
    first, second = (records_of(tmp_path / str(size)) for size in (2, 5))
    assert first == second


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    path = tmp_path / "file"
    append(path, b"a" * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            append(path, b"b" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"a" * 100


def test_a_mini_task_runs(model, tmp_path):
    summary = evaluate(model, get_task("mini-humaneval"), config=SHORT, limit=2, out=tmp_path)
    assert (summary.task, summary.protocol, summary.samples) == ("mini-humaneval", "mini", 2)
